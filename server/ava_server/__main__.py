"""The `ava` command's entry."""


def main() -> None:
    """Run the command line."""
    try:
        from ava_server.cli import run

        run()
    except KeyboardInterrupt:  # while the program was still being loaded: no traceback, the shell's own code for it
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
