"""The `ava` command's entry."""


def main() -> None:
    """Run the command line."""
    from ava_server.cli import run

    run()


if __name__ == "__main__":
    main()
