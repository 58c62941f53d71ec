"""Desktop notifications: tell a person that a subagent waits for them, in hosts that are not known to show it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

_LINUX = "/usr/bin:/bin:/usr/local/bin"
"""Where programs of the system are; the PATH may begin with a project's."""
_DESKTOPS = ("DISPLAY", "WAYLAND_DISPLAY")
_APPLE_SCRIPT = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
_POWERSHELL = """\
$null = [Windows.UI.Notifications.ToastNotificationManager, Windows.UI.Notifications, ContentType = WindowsRuntime]
$toast = [Windows.UI.Notifications.ToastNotificationManager]::GetTemplateContent('ToastText02')
$texts = $toast.GetElementsByTagName('text')
$null = $texts.Item(0).AppendChild($toast.CreateTextNode($args[0]))
$null = $texts.Item(1).AppendChild($toast.CreateTextNode($args[1]))
$app = '{1AC14E77-02E7-4E5D-B744-2EB1AE5198B7}\\WindowsPowerShell\\v1.0\\powershell.exe'
$shown = [Windows.UI.Notifications.ToastNotification]::new($toast)
[Windows.UI.Notifications.ToastNotificationManager]::CreateToastNotifier($app).Show($shown)
"""


def desktop_program(env: Mapping[str, str] | None = None, system: str = sys.platform) -> tuple[str, ...] | None:
    """Return the program that shows a title and a text, which follow its arguments; None without a desktop.

    Those for macOS and Windows have not been run.
    """
    env = os.environ if env is None else env
    if system == "darwin":
        return ("/usr/bin/osascript", "-e", _APPLE_SCRIPT)
    if system == "win32":
        shell = PureWindowsPath(env.get("SystemRoot", "C:/Windows"), "System32/WindowsPowerShell/v1.0/powershell.exe")
        return (str(shell), "-NoProfile", "-NonInteractive", "-Command", f"& {{{_POWERSHELL}}}")
    if not any(env.get(name) for name in _DESKTOPS):
        return None
    found = shutil.which("notify-send", path=_LINUX)
    return None if found is None else (found, "--app-name=Ava", "--")


def notice_of(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return title and text for an event of the event hook, of a run that a person approves in Ava; None at its end.

    Neither has anything of the task, and no code: others may see the screen.
    """
    if event["event"] == "ended":
        return None
    cost = event["max_cost_cents"]
    price = f"at most ${cost / 100:.2f}" if cost else "free"
    text = f"{event['role']}, {price}. Open the link in your host, or run: ava approve {event['pending_id']}"
    if event["event"] != "awaiting_approval":
        text = f"{event['role']} asks you something. Run: ava status {event['subagent_id']}"
    return "Ava: a subagent waits for you", text
