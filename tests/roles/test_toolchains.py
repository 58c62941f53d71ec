"""The toolchains that a project's commands get: found where people have them, and never more than that."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from support.repositories.projects import write

from ava_roles.sandbox.sandbox import Bind
from ava_roles.sandbox.selection import interpreter_binds
from ava_roles.sandbox.toolchains import (
    HostFolders,
    Toolchains,
    find_installation,
    find_toolchains,
    python_library,
    script_interpreter,
)

PROGRAM = "#!/bin/sh\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    write(folder, {".ssh/id_rsa": "x", ".cargo/credentials.toml": "x", "project/a.py": "x"})
    return folder


def test_exposes_only_the_interpreter_of_an_environment_under_each_of_its_names(home: Path) -> None:
    real = home / ".local/share/uv/python/cpython-3.12.3"
    python(real)
    minor = real.with_name("cpython-3.12")
    minor.symlink_to(real)
    environment(home / "project", minor / "bin" / "python3.12")
    tools = found(home, ".venv")
    assert tools.shown == {minor: real, real: real} or tools.shown == {minor: real}
    assert tools.path[0] == str(home / "project/.venv/bin")
    assert tools.variables["VIRTUAL_ENV"] == str(home / "project/.venv")


@pytest.mark.parametrize("prefix", ["", ".local", ".cargo", ".", "project", "project/tools"])
def test_an_interpreter_never_exposes_a_home_settings_or_workspace_parents(home: Path, prefix: str) -> None:
    environment(home / "project", python(home / prefix))
    assert found(home, ".venv").shown == {}


def test_exposes_nothing_for_a_file_that_is_not_an_interpreter(home: Path) -> None:
    write(home, {"secrets/bin/python": "x", "keys/id": "x"})
    for target in ("secrets/bin/python", "keys/id", ".ssh/id_rsa"):
        link = home / "project/.venv/bin/python"
        link.unlink(missing_ok=True)
        write(home / "project", {".venv/pyvenv.cfg": f"home = {home}/secrets/bin\n"})
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(home / target)
        assert found(home, ".venv").shown == {}, target


def test_follows_the_pyenv_version_of_the_project(home: Path) -> None:
    for version in ("3.11.7", "3.12.3"):
        python(home / ".pyenv/versions" / version)
    write(home, {".pyenv/shims/python3": PROGRAM, ".pyenv/version": "3.11.7\n"})
    shims = str(home / ".pyenv/shims")
    assert found(home, path=shims).path == [str(home / ".pyenv/versions/3.11.7/bin")]
    write(home, {"project/.python-version": "3.12.3\n"})
    tools = found(home, path=shims)
    assert tools.path == [str(home / ".pyenv/versions/3.12.3/bin")]
    assert set(tools.shown) == {home / ".pyenv/versions/3.12.3"}
    write(home, {"project/.python-version": "../../..\n"})
    assert found(home, path=shims).path == [str(home / ".pyenv/versions/3.11.7/bin")]


def test_uses_the_newest_nvm_node_when_the_path_has_none(home: Path) -> None:
    for version in ("v9.0.0", "v18.1.0", "v20.2.0"):
        write(home / ".nvm/versions/node" / version, {"bin/node": PROGRAM, "include/node/node.h": ""})
    write(home, {"project/package.json": "{}"})
    assert found(home).path == [str(home / ".nvm/versions/node/v20.2.0/bin")]
    assert found(home, path=str(home / ".nvm/versions/node/v18.1.0/bin")).path == [
        str(home / ".nvm/versions/node/v18.1.0/bin")
    ]


def test_exposes_only_cargo_packages_and_the_rustup_toolchain(home: Path) -> None:
    write(
        home,
        {
            "project/Cargo.toml": "",
            ".rustup/settings.toml": 'default_toolchain = "stable-x"\n',
            ".rustup/toolchains/nightly-x/bin/cargo": PROGRAM,
            ".rustup/toolchains/stable-x/bin/cargo": PROGRAM,
            ".cargo/registry/src/a": "",
        },
    )
    tools = found(home)
    assert set(tools.shown) == {home / ".rustup/toolchains/stable-x", home / ".cargo/registry"}
    assert tools.variables["CARGO_NET_OFFLINE"] == "true"
    write(home, {"project/rust-toolchain.toml": '[toolchain]\nchannel = "nightly"\n'})
    assert home / ".rustup/toolchains/nightly-x" in found(home).shown


def test_exposes_go_with_its_modules(home: Path) -> None:
    write(home, {"project/go.mod": "", "sdk/go1.22/bin/go": PROGRAM, "sdk/go1.22/pkg/x": "", "go/pkg/mod/a/b.go": ""})
    tools = found(home, path=str(home / "sdk/go1.22/bin"))
    assert set(tools.shown) == {home / "sdk/go1.22", home / "go/pkg/mod"}
    assert tools.path == [str(home / "sdk/go1.22/bin")]


def test_exposes_configured_folders_but_never_a_home_or_avas_own_folder(home: Path, tmp_path: Path) -> None:
    write(tmp_path, {"opt/tool/bin/tool": PROGRAM, "opt/data/x": ""})
    write(home, {"ava/ava.db": ""})
    good = (tmp_path / "opt/tool", tmp_path / "opt/data")
    bad = (home, tmp_path, Path("/"), home / "ava", home / "nowhere", Path("/proc"))
    tools = found(home, read_only=(*good, *bad))
    assert set(tools.shown) == set(good)
    assert tools.path == [str(tmp_path / "opt/tool/bin"), str(tmp_path / "opt/data")]
    assert len(tools.refused) == len(bad)


def test_does_not_expose_system_folders_again(home: Path) -> None:
    tools = found(home, path=os.defpath)
    assert tools.shown == {} and tools.path == []


def test_never_exposes_a_home_folder(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "elsewhere"
    environment(project, python(home))
    for dependencies, read_only in (((".venv",), ()), ((), (home, tmp_path))):
        tools = find_toolchains(project, dependencies, HostFolders(home, read_only), env={"PATH": ""})
        assert tools.shown == {}
        assert len(tools.refused) == len(read_only) and all("home folder" in why for why in tools.refused)


def test_an_interpreter_never_replaces_system_programs(home: Path) -> None:
    """Else a link from `/usr/bin`, or one that only seems to be there, would replace `prlimit`, which sets limits."""
    real = python(home / "root/usr")
    ups = len(home.parts)
    deep = home.joinpath("root", *map(str, range(ups)))
    deep.mkdir(parents=True)
    (home / "deep").symlink_to(deep)
    seems = f"{home}/deep{'/..' * ups}/usr/bin/python3.12"
    environment(home / "project", real)
    (home / "project/.venv/bin/python").unlink()
    (home / "project/.venv/bin/python").symlink_to(seems)
    assert os.path.normpath(seems) == "/usr/bin/python3.12" and Path(seems).resolve() == real
    assert found(home, ".venv").shown == {home / "root/usr": home / "root/usr"}


@pytest.mark.parametrize("name", ["rust-toolchain", "rust-toolchain.toml", ".python-version"])
@pytest.mark.parametrize("what", ["a pipe", "a device", "what the server reads", "a sparse gigabyte"])
def test_reads_version_files_without_blocking_and_only_up_to_a_limit(home: Path, name: str, what: str) -> None:
    python(home / ".pyenv/versions/3.12.1")
    write(home, {"project/Cargo.toml": "", ".pyenv/shims/python3": PROGRAM, ".pyenv/version": "3.12.1\n"})
    at = home / "project" / name
    if what == "a pipe":
        os.mkfifo(at)
    elif what == "a sparse gigabyte":
        at.touch()
        os.truncate(at, 1 << 30)
    else:
        at.symlink_to("/dev/zero" if what == "a device" else "/dev/stdin")
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from ava_roles.sandbox.toolchains import HostFolders, find_toolchains\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))\n"
        "home = Path(sys.argv[1]); env = {'PATH': str(home / '.pyenv/shims')}\n"
        "find_toolchains(home / 'project', (), HostFolders(home), env=env)\n"
        "print(sys.stdin.read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, home], input="a request", capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "a request\n", done.stderr


def test_a_program_in_the_project_cannot_choose_what_is_exposed(home: Path) -> None:
    write(home, {"secret/bin/node": PROGRAM, "secret/include/node/x": "", "project/package.json": "{}"})
    (home / "project/bin").mkdir()
    (home / "project/bin/node").symlink_to(home / "secret/bin/node")
    assert found(home, path=str(home / "project/bin")).shown == {}
    assert found(home, path=str(home / "secret/bin")).shown == {home / "secret": home / "secret"}


def test_exposes_nothing_for_a_broken_environment(home: Path) -> None:
    environment(home / "project", home / "nowhere")
    link = home / "project/.venv/bin/python"
    link.unlink()
    link.symlink_to(link)
    assert found(home, ".venv").shown == {}, "in a circle"
    link.unlink()
    link.symlink_to(python(home / "opt/python"))
    write(home, {"project/.venv/pyvenv.cfg": "home = /a\0b\n"})
    assert set(found(home, ".venv").shown) == {home / "opt/python"}


def test_an_unreadable_interpreter_of_another_user_does_not_stop_commands(home: Path) -> None:
    """A container's `.venv` is often root's, and leads below a home that is closed to everybody else."""
    environment(home / "project", python(home / "closed/python"))
    write(home / "project", {"go.mod": ""})
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from ava_roles.sandbox.toolchains import HostFolders, find_toolchains\n"
        "home = Path(sys.argv[1]); (home / 'closed').chmod(0)\n"
        "os.getuid() or os.setresuid(58500, 58500, 58500)\n"
        "found = find_toolchains(home / 'project', ('.venv',), HostFolders(home), env={'PATH': ''})\n"
        "print(*found.refused, len(found.shown))"
    )
    for folder in (home, *list(home.parents)[:-2]):
        if os.access(folder, os.W_OK):
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run([sys.executable, "-c", code, home], capture_output=True, text=True, timeout=20, check=False)
    (home / "closed").chmod(0o755)
    assert done.stdout.rstrip().endswith("python3.12: Permission denied) 0"), done


LIBRARY = "libpython3.12.so.1.0"


def linked_python(prefix: Path, folders: str, library: str = LIBRARY) -> Path:
    """A Python that was built with a shared library, which it looks for in these folders."""
    program = python(prefix)
    program.write_bytes(linked_program(library, folders))
    write(prefix, {f"lib/{LIBRARY}": "x"})
    return program


def test_exposes_the_python_library_where_the_interpreter_expects_it(home: Path) -> None:
    """pyenv builds it in where it installs to; the installation may be called by the name of a link to it."""
    versions = home / ".pyenv/versions"
    library = versions / "3.12.3/lib" / LIBRARY
    linked_python(versions / "3.12.3", f"/nowhere:{library.parent}")
    (versions / "3.12").symlink_to("3.12.3")
    environment(home / "project", versions / "3.12/bin/python3.12")
    assert found(home, ".venv").shown == {versions / "3.12": versions / "3.12.3", library: library}


def test_exposes_the_library_when_pyenv_is_behind_a_link(home: Path, tmp_path: Path) -> None:
    real, name = tmp_path / "opt/pyenv", home / ".pyenv"
    library = name / "versions/3.12.3/lib" / LIBRARY
    linked_python(real / "versions/3.12.3", str(library.parent))
    name.symlink_to(real)
    write(name, {"shims/python3": PROGRAM, "version": "3.12.3\n"})
    assert found(home, path=str(name / "shims")).shown == {
        real / "versions/3.12.3": real / "versions/3.12.3",
        library: real / "versions/3.12.3/lib" / LIBRARY,
    }


def test_the_interpreter_that_probes_a_sandbox_gets_its_library_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, name = tmp_path / "opt/python", home / "python"
    program = linked_python(real, str(name / "lib"))
    name.symlink_to(real)
    monkeypatch.setattr(sys, "base_prefix", str(name))
    library = Bind(real / "lib" / LIBRARY, PurePosixPath(name / "lib" / LIBRARY))
    assert interpreter_binds(program) == (Bind(real, PurePosixPath(real)), library)


@pytest.mark.parametrize("folders", ["{prefix}/lib", "$ORIGIN/../lib", "${{ORIGIN}}/../lib:/nowhere", "", "lib"])
def test_does_not_expose_a_library_inside_an_exposed_installation_again(home: Path, folders: str) -> None:
    prefix = home / ".pyenv/versions/3.12.3"
    environment(home / "project", linked_python(prefix, folders.format(prefix=prefix)))
    assert found(home, ".venv").shown == {prefix: prefix}


@pytest.mark.parametrize("library", ["id_rsa", "../.ssh/id_rsa", "libpython3.so", "libpython3.12.so.1.0/../id_rsa"])
def test_exposes_no_other_file_that_an_interpreter_names_as_its_library(home: Path, library: str) -> None:
    (home / ".ssh/libpython3.so").symlink_to("id_rsa")
    prefix = home / ".pyenv/versions/3.12.3"
    environment(home / "project", linked_python(prefix, f"{home}/.ssh", library))
    assert found(home, ".venv").shown == {prefix: prefix}


@pytest.mark.parametrize("folder", ["ava", "x/../ava", "project/lib"])
def test_does_not_expose_a_library_from_avas_folder_or_the_workspace(home: Path, folder: str) -> None:
    for name in ("ava", "project/lib"):
        write(home / name, {LIBRARY: "x"})
    prefix = home / ".pyenv/versions/3.12.3"
    environment(home / "project", linked_python(prefix, f"{home}/{folder}"))
    assert found(home, ".venv").shown == {prefix: prefix}


def test_a_truncated_or_invalid_program_has_no_library(tmp_path: Path) -> None:
    whole = linked_program(LIBRARY, str(tmp_path))
    write(tmp_path, {LIBRARY: "x"})
    program = tmp_path / "python3"
    program.write_bytes(whole)
    assert python_library(program) == tmp_path / LIBRARY
    for length in range(len(whole)):
        program.write_bytes(whole[:length])
        python_library(program)
    for at in range(len(whole)):
        for byte in (0, 0x7F, 0xFF):
            program.write_bytes(whole[:at] + bytes([byte]) * 8 + whole[at + 8 :])
            assert python_library(program) in (None, tmp_path / LIBRARY)
    assert python_library(tmp_path) is None and python_library(tmp_path / "gone") is None


@pytest.mark.parametrize("prefix", [".local/lib", ".npm-global/lib", "tools", ".bun/install/global"])
def test_a_program_in_a_package_of_npm_gets_the_packages_beside_it_and_nothing_above(home: Path, prefix: str) -> None:
    modules = home / prefix / "node_modules"
    write(modules, {"@maker/tool/dist/index.js": PROGRAM, "@maker/tool/node_modules/part/index.js": ""})
    (home / "bin").mkdir()
    (home / "bin/tool").symlink_to(modules / "@maker/tool/dist/index.js")
    shown = find_installation(home / "bin/tool", (), HostFolders(home)).shown
    assert shown == {home / "bin/tool": modules / "@maker/tool/dist/index.js", modules: modules}


def test_packages_that_hold_the_workspace_or_a_home_are_not_exposed(tmp_path: Path) -> None:
    modules = tmp_path / "node_modules"
    write(modules, {"tool/index.js": PROGRAM, "home/project/a.py": "", "home/.ssh/id": "x"})
    program = modules / "tool/index.js"
    for host, workspace in (
        (HostFolders(modules / "home"), None),
        (HostFolders(tmp_path / "other"), modules / "home/project"),
        (HostFolders(tmp_path / "other", (), (modules / "home",)), None),
    ):
        assert modules not in find_installation(program, (), host, workspace=workspace).shown


def test_reads_the_interpreter_of_a_script(home: Path) -> None:
    write(home, {"bin/node": PROGRAM, "own/python": PROGRAM})
    path = f"{home}/bin:/usr/bin:/bin"
    for line, words in {
        "#!/usr/bin/env node": [f"{home}/bin/node"],
        "#!/usr/bin/env -S node --flag": [f"{home}/bin/node", "--flag"],
        f"#! {home}/own/python -I": [f"{home}/own/python", "-I"],
        "#!/usr/bin/env no-such-program": [],
        "#!": [],
        "print(1)": [],
    }.items():
        (home / "script").write_text(f"{line}\nmore\n")
        assert script_interpreter(home / "script", path) == words, line
    (home / "script").unlink()
    assert script_interpreter(home / "script", path) == []
    os.mkfifo(home / "script")
    assert script_interpreter(home / "script", path) == []


def linked_program(library: str, folders: str) -> bytes:
    """An ELF file that names a library which it needs, and folders where the loader looks for it."""
    strings = b"\0" + library.encode() + b"\0" + folders.encode() + b"\0"
    begin, base = 64 + 2 * 56, 0x400000
    entries = [(1, 1), (29, 2 + len(library)), (5, base + begin), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = begin + len(strings) + len(dynamic)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, base, base, size, size, 4096)
    at = begin + len(strings)
    section = struct.pack("<IIQQQQQQ", 2, 4, at, base + at, base + at, len(dynamic), len(dynamic), 8)
    return header + load + section + strings + dynamic


def found(home: Path, *dependencies: str, path: str = "/nowhere", read_only: tuple[Path, ...] = ()) -> Toolchains:
    return find_toolchains(
        home / "project", dependencies, HostFolders(home, read_only, (home / "ava",)), env={"PATH": path}
    )


def python(prefix: Path) -> Path:
    """A folder with a Python, as an installer leaves it."""
    write(prefix, {"bin/python3.12": PROGRAM, "lib/python3.12/os.py": ""})
    (prefix / "bin" / "python3").symlink_to("python3.12")
    return prefix / "bin" / "python3.12"


def environment(project: Path, python: Path) -> None:
    write(project, {".venv/pyvenv.cfg": f"home = {python.parent}\n"})
    (project / ".venv" / "bin").mkdir()
    (project / ".venv" / "bin" / "python").symlink_to(python)
