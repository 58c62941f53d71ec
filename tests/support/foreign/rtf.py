"""Texts in RTF, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable

from support.foreign.office import OLE, Attack

HEAD = (
    r"{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0 Arial;}{\f1\fcharset204 Arial;}{\f2\fcharset2 Symbol;}"
    r"{\f3\fcharset128 MS Mincho;}}{\stylesheet{\s1\outlinelevel0 heading 1;}{\s2\outlinelevel1 heading 2;}}"
)


def rtf_of(body: str) -> bytes:
    """Return a file with this body."""
    return f"{HEAD}{body}}}".encode("latin-1")


PICTURE = r"{\pict\pngblip 89504e47}"
BOX = r"{\shp{\*\shpinst{\sp{\sn shapeType}{\sv 202}}{\shptxt \pard in a box\par}}}"
CELLS = r"\trowd\cellx1\cellx2 \intbl %s\cell %s\cell\row"
LINK = r'{\field{\*\fldinst HYPERLINK "https://x.org/"}{\fldrslt %s}}'
FORM = (
    r"{\field{\*\fldinst %s{\*\formfield{\fftype1\ffres%s\ffdefres1{\*\ffname x}{\*\ffl one}{\*\ffl two}}}}{\fldrslt }}"
)
TEXTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "paragraphs": (r"one\par two\par", "one\n\ntwo", ()),
    "paragraphs as Apple writes them": ("one\\\ntwo", "one\n\ntwo", ()),
    "headings": (r"\pard\s1 Rent\par\pard\s2 When\par\pard body", "# Rent\n\n## When\n\nbody", ()),
    "tab and break": (r"a\tab b\line c", "a\tb\nc", ()),
    "signs": (r"\{a\}\~\\\emdash\ldblquote b\rdblquote", "{a}\xa0\\—“b”", ()),
    "Windows-1252": (r"k\'fcndigen \'80", "kündigen €", ()),
    "Windows-1251": (r"\f1 \'c4\'ee\'e3\'ee\'e2\'ee\'f0\f0  x", "Договор x", ()),
    "Shift-JIS": (r"\f3 \'8c\'5f\'96\'f1", "契約", ()),
    "Unicode": (r"\uc1 \u22865?\u-10179?\u-8704?x", "契😀x", ()),
    "Unicode with two signs that repeat it": (r"{\uc2 \u22865\'3f\'3fx}\u8364?y", "契x€y", ()),
    "Unicode beside the page's own": (r"{\upr{Vertr?ge}{\*\ud{Vertr\u228?ge}}}", "Verträge", ()),
    "a sign of a font": (r"\f2 \'b7", "•", ()),
    "tracked changes": (r"rent {\revised 1150}{\deleted 900} euro", "rent 1150 euro", ("1 tracked deletion",)),
    "a deleted end of a paragraph": (r"a{\deleted\par}b", "ab", ()),
    "hidden text": (r"a{\v two words}b", "ab", ("2 words of hidden text",)),
    "a list": (
        r"{\listtext 1.\tab}\ilvl0 a\par{\listtext a)\tab}\ilvl1 b\par",
        "1. a\n\n  a) b",
        (),
    ),
    "bullets": (r"{\pntext\f2\'b7\tab}a\par", "• a", ()),
    "table": (CELLS % ("a", "b") + CELLS % ("c", "d") + r"\pard after", "| a | b |\n|---|---|\n| c | d |\n\nafter", ()),
    "table in a table": (
        r"\trowd\intbl a\cell\pard\intbl\itap2 b\nestcell c\nestcell{\*\nesttableprops\trowd\nestrow}"
        r"d\par e\nestcell{\*\nesttableprops\trowd\nestrow}\pard\intbl\cell\row",
        "| a | b; c d e |\n|---|---|",
        (),
    ),
    "a table in a table without its end": (
        r"\trowd\intbl a\cell\itap2 b\nestcell c\par",
        "| a | b; c |\n|---|---|",
        (),
    ),
    "a table without its end": (r"\trowd\intbl a\cell b\cell", "| a | b |\n|---|---|", ()),
    "link": (LINK % "the page", "the page (https://x.org/)", ()),
    "link that is its address": (LINK % "https://x.org/", "https://x.org/", ()),
    "field": (r"{\field{\*\fldinst DATE}{\fldrslt 4 May}}", "4 May", ()),
    "field without a value": (r"{\field{\*\fldinst EQ x}{\fldrslt }}", "", ("the value of a field (EQ)",)),
    "ticked box": (FORM % ("FORMCHECKBOX", 1) + "yes", "☒yes", ()),
    "box that is not ticked": (FORM % ("FORMCHECKBOX", 0), "☐", ()),
    "choice": (FORM % ("FORMDROPDOWN", 1), "two", ()),
    "text box": (f"a{BOX}b", "ab\n\nin a box", ()),
    "old text box": (r"a{\*\do{\dptxbxtext in a box\par}}", "a\n\nin a box", ()),
    "lettering": (r"{\shp{\*\shpinst{\sp{\sn gtextUNICODE}{\sv ACME}}}}", "ACME", ()),
    "picture": (rf"a{PICTURE}", "a", ("1 picture",)),
    "picture in two forms": (rf"{{\*\shppict{PICTURE}}}{{\nonshppict{PICTURE}}}", "", ("1 picture",)),
    "picture with a description": (
        r"{\pict{\*\picprop{\sp{\sn wzDescription}{\sv a dot}}}\pngblip 00}",
        "[picture: a dot]",
        ("1 picture",),
    ),
    "binary picture": ("{\\pict\\bin6 }}}{{{}kept", "kept", ("1 picture",)),
    "embedded object": (
        rf"{{\object\objemb{{\*\objclass Excel.Sheet}}{{\*\objdata 00ff}}{{\result {PICTURE}}}}}",
        "",
        ("an embedded object (Excel.Sheet)",),
    ),
    "what is no text": (r"{\*\unknown no}{\*\bkmkstart no}{\info{\author no}}{\*\template file:///no}kept", "kept", ()),
    "unknown group": (r"{\newthing kept}", "kept", ()),
    "cut short": (r"kept{", "kept", ("what follows the place where the file breaks off",)),
    "a brace too many": (r"kept}lost", "kept", ("what follows the end of its text (5 bytes)",)),
    "an encoding that nobody knows": (
        r"\ansicpg99999 a\'e4",
        "aä",
        ("a text in an encoding that is not known here (cp99999)",),
    ),
}


def rtf_attacks(port: int) -> dict[str, Attack]:
    """Return hostile files; a port of this machine may be asked for nothing."""
    web = f"http://127.0.0.1:{port}/x"

    def body(text: str) -> Callable[[], bytes]:
        return lambda: rtf_of(rf"KEPTWORD\par {text}")

    off = "breaks off"
    outside = (
        rf'{{\field{{\*\fldinst INCLUDEPICTURE "{web}" \\d}}{{\fldrslt }}}}'
        rf'{{\field{{\*\fldinst INCLUDETEXT "/etc/passwd"}}{{\fldrslt }}}}'
        rf"{{\*\template {web}}}{{\object\objautlink{{\*\objclass {web}}}{{\*\objdata 00}}}}"
        rf"{{\shp{{\*\shpinst{{\sp{{\sn pibName}}{{\sv {web}}}}}}}}}"
    )
    return {
        "1,000 groups in groups": Attack(body("{" * 1_000 + "x" + "}" * 1_000), read="KEPTWORD"),
        "a million groups in groups": Attack(body("{" * 1_000_000), "nested too deep"),
        "a million groups": Attack(body("{x}" * 1_000_000), read="KEPTWORD"),
        "a million ends of groups": Attack(body("}" * 1_000_000), read="KEPTWORD", missing="follows the end"),
        "a million paragraphs": Attack(body(r"x\par " * 1_000_000), read="KEPTWORD"),
        "a million cells of a row": Attack(body(r"\trowd " + r"\intbl x\cell " * 1_000_000 + r"\row"), read="KEPTWORD"),
        "300,000 rows": Attack(body(CELLS % ("x", "y") * 300_000), read="KEPTWORD"),
        "tables in tables": Attack(body(r"\intbl\itap999999999 x\nestcell\nestrow" * 100_000), read="KEPTWORD"),
        "binary data beyond the end": Attack(body(r"{\pict\bin999999999 x}"), read="KEPTWORD", missing=off),
        "binary data of a googol": Attack(body(rf"{{\pict\bin{10**100} x}}"), read="KEPTWORD", missing=off),
        "binary data below nothing": Attack(body(r"{\pict\bin-999999999 x}"), read="KEPTWORD"),
        "a million pieces of binary data": Attack(body(r"\bin0 " * 1_000_000), read="KEPTWORD"),
        "numbers of a thousand digits": Attack(
            body(rf"\f{10**999}\u{10**999}?\uc{10**999}\ilvl{10**999}\s-{10**999} x"), read="KEPTWORD"
        ),
        "half signs of Unicode": Attack(body(r"\u-10179?" * 100_000), read="KEPTWORD"),
        "signs that repeat without end": Attack(body(r"\uc99\u20?" + "x" * 1_000_000), read="KEPTWORD"),
        "words without end": Attack(body("\\" + "a" * 5_000_000), read="KEPTWORD"),
        "backslashes without end": Attack(body("\\" * 5_000_001), read="KEPTWORD"),
        "hex that is none": Attack(body(r"\'zz\'" * 100_000), read="KEPTWORD"),
        "20 million characters": Attack(body("words " * 3_300_000), read="too long to read"),
        "20 million characters of paragraphs": Attack(body(r"words words\par " * 1_200_000), read="KEPTWORD"),
        "a picture of 20 MB": Attack(
            body(rf"{{\pict {'89504e47' * 2_400_000}}}"), read="KEPTWORD", missing="1 picture"
        ),
        "a picture in 200,000 lines": Attack(body("{\\pict " + ("8950" * 20 + "\n") * 200_000 + "}"), read="KEPTWORD"),
        "fields in fields": Attack(body(r"{\field{\*\fldinst " * 2_000), read="KEPTWORD", missing=off),
        "a field of 5 MB": Attack(
            body(rf"{{\field{{\*\fldinst {'HYPERLINK ' * 500_000}}}{{\fldrslt x}}}}"), read="KEPTWORD"
        ),
        "notes in notes": Attack(body(r"{\footnote x" * 4_000 + "}" * 4_000), read="KEPTWORD"),
        "100,000 notes": Attack(body(r"{\footnote x}" * 100_000), read="KEPTWORD"),
        "boxes in boxes": Attack(body(r"{\shptxt x" * 4_000 + "}" * 4_000), read="KEPTWORD"),
        "100,000 fonts": Attack(
            body(r"{\fonttbl" + "".join(rf"{{\f{n} x;}}" for n in range(100_000)) + "}"), read="KEPTWORD"
        ),
        "everything outside": Attack(body(outside), read="KEPTWORD", missing="INCLUDETEXT"),
        "a codec that runs something": Attack(body(r"\ansicpg037 x\f0 x"), read="KEPTWORD"),
        "a program": Attack(
            body(r"{\object\objocx{\*\objclass Package}{\*\objdata 4d5a}}"), read="KEPTWORD", missing="object (Package)"
        ),
        "only a head": Attack(lambda: b"{\\rtf1", read="^$", missing=off),
        "noise": Attack(lambda: b"{\\rtf1 " + bytes(range(256)) * 4_000, read="."),
        "of an old Office": Attack(lambda: OLE + b"\0" * 600, "old binary format"),
        "of another kind": Attack(lambda: b"PK\x03\x04 KEPTWORD", "no text of its kind"),
        "empty": Attack(lambda: b"", "no text of its kind"),
    }
