"""The files under docs/deploy/: each checked by its own tool, and nginx and Caddy in front of a real server."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import yaml
from support.http_server import BOTH, HELLO, bearer, serve_http, token
from support.network.balancer import FOLDER, run_balancer, tool
from support.network.certificates import issue
from support.postgres import free_port

from ava_server.config.keys import find_key
from ava_server.config.settings import load_settings
from ava_server.core.shutdown import EXIT_WITHIN_S
from ava_server.service.engines import engine_fault

AVA_SERVICES = ("server-1", "server-2", "worker-1", "worker-2")
METRICS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
NAME = "ava.example.org"


def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = (FOLDER / "ava.service").read_text()
    (tmp_path / "ava.service").write_text(text.replace("/var/lib/ava/venv/bin/ava", sys.executable))
    analyze = tool("systemd-analyze")
    assert "ava.service" not in checked(analyze, "verify", str(tmp_path / "ava.service"))


def test_the_proxies_configurations_are_valid(tmp_path: Path) -> None:
    for path in (FOLDER / "Caddyfile", FOLDER / "compose" / "Caddyfile"):
        checked(tool("caddy"), "validate", "--config", str(path), "--adapter", "caddyfile")
    checked(tool("nginx"), "-t", "-c", str(nginx_files(tmp_path, 8443, 8642)))


def test_the_image_the_containers_and_the_pods_have_this_version() -> None:
    ours = version("ava-subagents")
    assert f"-t ava:{ours} ." in (FOLDER / "Dockerfile").read_text()
    services = compose()["services"]
    assert {services[name]["image"] for name in AVA_SERVICES} == {f"ava:{ours}"}
    kustomization = yaml.safe_load((FOLDER / "kubernetes" / "kustomization.yaml").read_text())
    assert [image["newTag"] for image in kustomization["images"]] == [ours]


def test_the_image_gets_all_that_the_wheel_is_made_of() -> None:
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "uv.lock", "README.md"}
    copied = {
        path
        for line in (FOLDER / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for path in line.split()[1:-1]
    }
    let_in = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    for path in needed:
        above = {path, *map(str, Path(path).parents)}
        assert above & copied and above & let_in, path


def test_secrets_beside_the_containers_get_into_no_image() -> None:
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    kept_out = lines[lines.index("!docs") + 1 :]  # the last line that fits decides
    assert {"docs/deploy/compose/secrets", "**/.env"} <= set(kept_out)
    for name, service in compose()["services"].items():
        assert service.get("env_file", "secrets/").startswith("secrets/"), name
    assert all(secret["file"].startswith("secrets/") for secret in compose()["secrets"].values())


def test_compose_can_wait_until_all_containers_run() -> None:
    """`up --wait` fails at a container whose image has a health check and whose service takes it away."""
    assert "HEALTHCHECK" not in (FOLDER / "Dockerfile").read_text()
    services = compose()["services"]
    assert all("disable" not in service.get("healthcheck", {}) for service in services.values())
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"worker-1", "worker-2"}


def test_caddy_reaches_the_servers_only_from_the_address_that_they_trust() -> None:
    services, networks = compose()["services"], compose()["networks"]
    caddy = services["caddy"]["networks"]
    address = ipaddress.ip_address(caddy["inside"]["ipv4_address"])
    for name in AVA_SERVICES[:2]:
        assert set(services[name]["networks"]) & set(caddy) == {"inside"}
        assert f"--trusted-proxy={address}" in services[name]["command"]
    addresses = networks["inside"]["ipam"]["config"][0]
    assert address in ipaddress.ip_network(addresses["subnet"])
    assert address not in ipaddress.ip_network(addresses["ip_range"]), "another container could get it"


def test_containers_and_pods_are_killed_only_after_a_whole_shutdown() -> None:
    services = compose()["services"]
    given = [(services[name]["command"], seconds(services[name]["stop_grace_period"])) for name in AVA_SERVICES]
    given += [(pod["containers"][0]["args"], pod["terminationGracePeriodSeconds"]) for pod in pods().values()]
    for words, killed_s in given:
        options = dict(word.split("=", 1) for word in words if "=" in word)
        takes_s = seconds(options.get("--shutdown-delay", "0s")) + seconds(options["--drain"]) + EXIT_WITHIN_S
        assert takes_s + 5 < killed_s, words
    assert seconds(services["caddy"]["stop_grace_period"]) > 30, "grace_period in the Caddyfile"


def test_containers_and_pods_have_no_rights_that_they_do_not_need() -> None:
    services = compose()["services"]
    for name in AVA_SERVICES:
        assert services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    for pod in pods().values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["initContainers"], *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "USER 10001:10001" in (FOLDER / "Dockerfile").read_text()


def test_the_examples_hold_no_secret() -> None:
    secret = yaml.safe_load((FOLDER / "kubernetes" / "secret.example.yaml").read_text())["stringData"]
    assert ":PASSWORD@" in secret["AVA_DATABASE_URL"] and secret["OPENROUTER_API_KEY"] == "KEY"
    for name in AVA_SERVICES:
        assert ":" not in compose()["services"][name]["environment"]["AVA_DATABASE_URL"].partition("@")[0][13:]


def test_kustomize_builds_the_manifests() -> None:
    built = checked(tool("kubectl"), "kustomize", str(FOLDER / "kubernetes"))
    kinds = Counter(each["kind"] for each in yaml.safe_load_all(built))
    assert kinds == {
        "Namespace": 1, "ConfigMap": 1, "Deployment": 2, "PodDisruptionBudget": 2, "Service": 1, "NetworkPolicy": 2,
    }  # fmt: skip


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose" / "compose.yaml").read_text())
    return found


def pods() -> dict[str, dict[str, Any]]:
    """The pods of the deployments, by name."""
    files = [(FOLDER / "kubernetes" / name).read_text() for name in ("servers.yaml", "workers.yaml")]
    documents = [document for text in files for document in yaml.safe_load_all(text)]
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] == "Deployment"
    }


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_keda_counts_what_waits_in_the_log() -> None:
    [trigger] = yaml.safe_load((FOLDER / "kubernetes" / "keda.example.yaml").read_text())["spec"]["triggers"]
    assert trigger["type"] == "prometheus" and 'ava_runs{state=~"queued|running"}' in trigger["metadata"]["query"]
    [row] = re.findall(r"^\| `ava_runs` \|.*$", METRICS.read_text("utf-8"), re.MULTILINE)
    assert "`queued`" in row and "`running`" in row


def test_pods_get_the_keys_that_nats_wants_from_two_secrets(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes" / "nats.example.yaml").read_text()))
    secrets = {each["metadata"]["name"]: each["stringData"] for each in documents if each["kind"] == "Secret"}
    [nats] = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "StatefulSet"]
    variables = {each["name"]: each for each in nats["containers"][0]["env"]}
    users = re.findall(r"user: (\w+)\n\s+password: \$(\w+)", (FOLDER / "nats" / "nats.conf").read_text())
    assert [user for user, _variable in users] == ["server", "worker"]
    for user, variable in users:
        stored = secrets[f"ava-nats-{user}"]
        key = find_key("nats", tmp_path / "keys.toml", stored)
        assert key is not None and key.value == f"{user}:{stored[variable]}", "as Ava reads it"
        assert variables[variable]["valueFrom"] == {"secretKeyRef": {"name": f"ava-nats-{user}", "key": variable}}
        [pod] = pods()[f"ava-{user}"]["containers"]
        assert {"secretRef": {"name": f"ava-nats-{user}", "optional": True}} in pod["envFrom"]
        other = next(name for name, _variable in users if name != user)
        assert all(f"ava-nats-{other}" not in str(each) for each in pod["envFrom"])
    assert "NATS_STORE" in variables


def test_nats_listens_on_one_machine_unless_it_is_told_otherwise() -> None:
    conf = (FOLDER / "nats" / "nats.conf").read_text()
    assert re.findall(r"^(?:listen|http): \"([^\"]*)\"", conf, re.MULTILINE) == ["127.0.0.1:4222", "127.0.0.1:8222"]
    compose_nats = yaml.safe_load((FOLDER / "compose" / "nats.yaml").read_text())["services"]["nats"]
    assert compose_nats["command"][-2:] == ["--addr", "0.0.0.0"] and compose_nats["networks"] == ["inside"]


@pytest.mark.parametrize("folder", ["compose", "kubernetes"])
def test_the_settings_that_are_commented_out_for_nats_are_valid(tmp_path: Path, folder: str) -> None:
    file = FOLDER / folder / ("nats.yaml" if folder == "compose" else "config.toml")
    block = re.search(r"^# *\[delivery\]\n(?:# .*\n)+", file.read_text(), re.MULTILINE)
    assert block is not None
    (tmp_path / "config.toml").write_text('runs_on = "workers"\n' + block.group().replace("#", ""))
    settings = load_settings(tmp_path, env={"AVA_DATABASE_URL": "postgresql://ava@db/ava"})
    assert engine_fault(settings) is None and settings.delivery.address == "nats://nats:4222"


def test_the_alert_rules_are_valid() -> None:
    assert "19 rules found" in checked(tool("promtool"), "check", "rules", str(FOLDER / "alerts.yml"))


def test_rules_and_dashboard_use_only_documented_metrics_and_their_labels() -> None:
    rows = re.findall(r"^\| `(ava_\w+)` \|([^|]*)\|", METRICS.read_text("utf-8"), re.MULTILINE)
    known: Mapping[str, set[str]] = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    panels: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    asked = [(rule["expr"], rule["annotations"]["summary"]) for rule in rules]
    asked += [(target["expr"], target["legendFormat"]) for panel in panels for target in panel["targets"]]
    for expression, words in asked:
        names = {re.sub("_(sum|count|bucket)$", "", name) for name in re.findall(r"\b(ava_\w+)", expression)}
        assert names <= set(known) and (names or "up{" in expression), expression
        labels = set(re.findall(r"(\w+)=\"", expression)) | set(
            re.findall(r"\{\{(?:\$labels\.| \$labels\.)?(\w+)", words)
        )
        grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        labels |= {label.strip() for group in grouped for label in group.split(",")}
        allowed = set[str]().union(*(known[name] for name in names), {"job", "instance"})
        assert labels - {"value"} <= allowed, (expression, labels - allowed)


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["nginx", "caddy"])
async def test_a_client_reaches_the_server_through_the_proxy_and_the_metrics_stay_inside(
    tmp_path: Path, proxy: str
) -> None:
    program, root, port = tool(proxy), tmp_path / "data", free_port()
    text = token(root, "ana", "spawn", "read", "audit")
    more = ("--public-url", f"https://{NAME}", "--trusted-proxy", "127.0.0.1", "--access-log")
    async with serve_http(root, *more) as server:
        files = (nginx_files if proxy == "nginx" else caddy_files)(tmp_path, port, server.port)
        command: tuple[str, ...] = (program, "-c", str(files), "-g", "daemon off;")
        if proxy == "caddy":
            command = (program, "run", "--config", str(files), "--adapter", "caddyfile")
        async with run_balancer(command, port), httpx2.AsyncClient(verify=False, timeout=20) as http:
            headers = {**bearer(text), **BOTH, "Host": NAME}
            given: dict[str, Any] = {"headers": headers, "extensions": {"sni_hostname": NAME}}
            base = f"https://127.0.0.1:{port}"
            with anyio.fail_after(20):
                while True:  # Caddy makes its certificate after it listens
                    try:
                        hello = await http.post(f"{base}/mcp", json=HELLO, **given)
                        break
                    except httpx2.ConnectError:
                        await anyio.sleep(0.2)
            assert hello.status_code == 200 and '"name":"ava"' in hello.text.replace(" ", ""), hello.text
            assert (await http.get(f"{base}/metrics", **given)).status_code == 404
            assert (await server.get("/metrics", text)).status_code == 200
            foreign = {**given, "headers": {**headers, "Origin": "https://evil.example"}}
            assert (await http.post(f"{base}/mcp", json=HELLO, **foreign)).status_code == 403


@pytest.mark.parametrize("folder", ["compose", "kubernetes"])
def test_the_settings_of_servers_and_workers_are_valid(tmp_path: Path, folder: str) -> None:
    shutil.copy(FOLDER / folder / "config.toml", tmp_path / "config.toml")
    settings = load_settings(tmp_path, env={"AVA_DATABASE_URL": "postgresql://ava@db/ava"})
    assert settings.runs_on == "workers" and not settings.mirrors


def checked(*command: str) -> str:
    env = {**os.environ, "PUBLIC_HOST": NAME}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def nginx_files(tmp: Path, port: int, behind: int) -> Path:
    """The configuration as it is, with a certificate, a port and folders of this test."""
    certificate = issue(tmp, NAME).server
    text = (FOLDER / "nginx.conf").read_text()
    text = re.sub(r"/etc/ssl/(certs|private)/\S+(?=;)", str(certificate), text)
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace(
        "127.0.0.1:8642", f"127.0.0.1:{behind}"
    )
    (tmp / "ava.conf").write_text(text)
    paths = "".join(
        f"{each}_temp_path {tmp}/{each};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    http = f"access_log off;\n{paths}include {tmp}/ava.conf;\n"
    whole = f"pid {tmp}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{http}}}\n"
    (tmp / "nginx.conf").write_text(whole)
    return tmp / "nginx.conf"


def caddy_files(tmp: Path, port: int, behind: int) -> Path:
    text = (FOLDER / "Caddyfile").read_text().replace("127.0.0.1:8642", f"127.0.0.1:{behind}")
    text = text.replace(f"{NAME} {{", f"https://{NAME}:{port} {{\n\ttls internal")
    options = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n"
    options += f"\tstorage file_system {tmp}/caddy\n}}\n"
    (tmp / "Caddyfile").write_text(options + text)
    return tmp / "Caddyfile"
