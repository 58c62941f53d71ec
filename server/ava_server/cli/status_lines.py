"""Lines of rich text for `ava status`: states, bars, figures and times, and texts that others wrote.

What others wrote reaches a line only through `joined`, which removes what could steer a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from ava_audit.rows import EXPIRED
from ava_audit.units import HOUR_S, format_duration, format_ts, format_usd, minutes, now_us
from ava_roles.wrap import clean
from ava_server.cli.terminal import can_write, cells, cut, wrapped_lines
from ava_server.core.ids import state_words
from ava_server.render.reasons import reason_words
from ava_server.render.state_look import STYLES, look_of

if TYPE_CHECKING:
    from ava_server.render.run_view import Cap, RunView

NEARLY = 0.8
"""From this share of a cap on a bar has another colour; the model is told then what is left."""
GAP = 2
"""Columns between the cells of a row, and before an indented line."""
_BLOCKS, _PLAIN = ("█", "▒", "░"), ("#", "+", "-")


def state_style(run: RunView) -> str:
    return STYLES[look_of(run.state).kind]


def state_sign(state: str) -> str:
    look = look_of(state)
    return look.sign if can_write(look.sign) else look.plain


def state_cell(state: str) -> str:
    """Return a state with its sign: `✓ success`."""
    return f"{state_sign(state)} {state_words(state)}"


def cap_text(cap: Cap) -> str:
    """`turn 4/20`."""
    from ava_server.render.run_view import short_number  # not needed where no run is shown

    match cap.name:
        case "seconds":
            if cap.most >= 2 * HOUR_S:
                return f"{format_duration(cap.used)} of {minutes(cap.most)}"
            return f"{cap.used:.0f}/{cap.most:g} s"
        case "turns":
            return f"turn {cap.used}/{cap.most}"
        case "steps" | "runs":
            return f"{cap.used}/{cap.most} {cap.name}"
        case "tool_calls":
            return f"{cap.used}/{cap.most} calls"
        case "tokens":
            return f"{short_number(cap.used)}/{short_number(cap.most)} tok"
        case _ if cap.most <= 0:
            return "free"
        case _:
            return f"{format_usd(int(cap.used))}/{format_usd(int(cap.most), exact=True)}"


def bar(used: float, most: float, width: int, held: float = 0) -> Text:
    """Return what is used, what is held, and the rest; empty only at nothing, full only at the cap."""
    width = max(width, 1)
    full, reserved, empty = _BLOCKS if can_write("".join(_BLOCKS)) else _PLAIN
    filled = _part(used, most, width)
    both = max(_part(used + held, most, width), filled)
    if held:
        both = max(both, min(filled + 1, width))
    style = _bar_style(used / most if most > 0 else 1.0)
    return Text.assemble((full * filled, style), (reserved * (both - filled), style), (empty * (width - both), "dim"))


def _bar_style(share: float) -> str:
    if share >= 1:
        return "red"
    return "yellow" if share >= NEARLY else "green"


def _part(amount: float, most: float, width: int) -> int:
    if most <= 0 or amount >= most:
        return width
    return max(1, min(round(width * amount / most), width - 1)) if amount > 0 else 0


def cells_in_row(texts: Iterable[Text], column: int) -> Text:
    row = Text()
    for text in texts:
        cell = fitted(text, column)
        cell.pad_right(column - cell.cell_len)
        row.append(" " * GAP).append_text(cell)
    row.rstrip()
    return row


def terms(run: RunView) -> str:
    """Return what a proposal would cost at most, and until when it can be approved."""
    if run.state == EXPIRED:
        return f"expired {clock(run.expires_us)}"
    if not run.caps:
        return f"expires {clock(run.expires_us)}"
    return f"{run.most}, expires {clock(run.expires_us)}"


def remarks(run: RunView) -> str:
    """Return what a run waits for, why it ends with its host, or why it ended otherwise than by success."""
    if run.wait is not None:
        return run.wait.for_people()
    if run.ends_with_host:
        return run.ends_with_host
    if run.worker:
        return plain(f"on worker {run.worker}")
    return plain(reason_words(run.row.stop_reason or "")) if run.state != "success" else ""


def clock(ts_us: int | None) -> str:
    """Return a local time as `14:05`, with its day where that is not today."""
    if ts_us is None:
        return "?"
    day, _, time = format_ts(ts_us).partition(" ")
    return time[:5] if day == format_ts(now_us()).partition(" ")[0] else f"{day} {time[:5]}"


# -- lines ------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return any text as one line without what could steer a terminal."""
    return clean(text)[0].replace("\n", " ").replace("\t", " ")


def joined(*parts: str | tuple[str, str]) -> Text:
    """Return a line of texts, some with a style; nothing in them is markup or steers a terminal."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for part in parts:
        words, style = (part, "") if isinstance(part, str) else part
        line.append(plain(words), style or None)
    return line


def folded(text: str, width: int, style: str = "", *, breaks: bool = False) -> Iterator[Text]:
    """Yield a text in lines of at most so many columns; none for an empty text. With `breaks`, nothing is cut."""
    if text:
        yield from (joined((line, style)) for line in wrapped_lines(clean(text)[0], width, breaks=breaks))


def fitting(keys: Sequence[str], width: int) -> str:
    """Return the first of these lines that fits, else the last."""
    return next((one for one in keys if cells(one) <= width and can_write(one)), keys[-1])


def fitted(line: Text, width: int) -> Text:
    """Return a line in at most `width` columns, as `cut` shortens plain text."""
    short = line.copy()
    short.plain = cut(line.plain, width)
    return short


def both_ends(left: Text, right: str, width: int) -> Text:
    """The left is cut where both do not fit."""
    short = fitted(left, max(width - cells(right) - 1, 1))
    blanks = max(width - short.cell_len - cells(right), 1)
    return Text.assemble(short, " " * blanks, (right, "dim"))
