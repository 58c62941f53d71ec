"""OpenDocument files made by hand, and attacks that each kind of them has to withstand."""

from __future__ import annotations

from support.foreign.office import Attack, Victim, archive_attacks, cut_short, pack_changed, pack_parts

_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
_NAMES = ("office", "text", "table", "style", "presentation", "meta", "manifest", "form", "chart", "script")
NAMESPACES = {
    **{name: f"{_OASIS}{name}:1.0" for name in _NAMES},
    "draw": f"{_OASIS}drawing:1.0",
    "svg": f"{_OASIS}svg-compatible:1.0",
    "xlink": "http://www.w3.org/1999/xlink",
    "dc": "http://purl.org/dc/elements/1.1/",
    "math": "http://www.w3.org/1998/Math/MathML",
}
DECLARED = " ".join(f'xmlns:{prefix}="{namespace}"' for prefix, namespace in NAMESPACES.items())
_KINDS = {"text": "text", "presentation": "presentation", "spreadsheet": "spreadsheet", "drawing": "graphics"}
_ENCRYPTED = '<manifest:encryption-data manifest:checksum="x"/>'


def element(name: str, inside: str) -> str:
    return f"<{name} {DECLARED}>{inside}</{name}>"


def content(body: str, kind: str = "text", styles: str = "") -> str:
    automatic = f"<office:automatic-styles>{styles}</office:automatic-styles>"
    return element(
        "office:document-content", f"{automatic}<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    )


def open_parts(body: str, kind: str = "text", styles: str = "", masters: str = "") -> dict[str, str | bytes]:
    """Return the parts of an OpenDocument file. `styles`: its automatic ones; `masters`: its master pages."""
    holders = f"<office:master-styles>{masters}</office:master-styles>"
    return {
        "mimetype": f"application/vnd.oasis.opendocument.{_KINDS[kind]}",
        "META-INF/manifest.xml": '<!DOCTYPE manifest:manifest PUBLIC "-//OpenOffice.org//DTD Manifest 1.0//EN"'
        ' "Manifest.dtd">' + element("manifest:manifest", '<manifest:file-entry manifest:full-path="content.xml"/>'),
        "meta.xml": element("office:document-meta", "<office:meta><dc:title>The title</dc:title></office:meta>"),
        "styles.xml": element("office:document-styles", holders),
        "content.xml": content(body, kind, styles),
    }


def open_file(body: str, kind: str = "text", styles: str = "", masters: str = "") -> bytes:
    return pack_parts(open_parts(body, kind, styles, masters))


def p(text: str) -> str:
    return f"<text:p>{text}</text:p>"


def cell(text: str = "", about: str = "") -> str:
    return f"<table:table-cell {about}>{p(text) if text else ''}</table:table-cell>"


def row(*cells: str, about: str = "") -> str:
    return f"<table:table-row {about}>{''.join(cells)}</table:table-row>"


def sheet(*rows: str, name: str = "Plan", about: str = "") -> str:
    return f'<table:table table:name="{name}" {about}>{"".join(rows)}</table:table>'


def open_attacks(victim: Victim, kind: str, port: int) -> dict[str, Attack]:
    """Return attacks on a kind of OpenDocument file; those that fetch something ask a server at this port."""
    parts = victim.parts("KEPTWORD")
    text = str(parts["content.xml"])
    web = f"http://127.0.0.1:{port}/x"
    other = "text" if kind != "text" else "spreadsheet"
    manifest = str(parts["META-INF/manifest.xml"])
    frame = (
        f'<draw:frame><draw:image xlink:href="{web}"/></draw:frame>'
        '<draw:frame><draw:object xlink:href="./"/></draw:frame>'
        f'<draw:frame><draw:object xlink:href="{web}"/></draw:frame>'
        '<draw:frame><draw:image xlink:href="../../../../etc/passwd"/></draw:frame>'
        f'<draw:frame><draw:floating-frame xlink:href="{web}"/></draw:frame>'
    )
    loop = "".join(
        f'<style:style style:name="S{at}" style:family="paragraph" style:parent-style-name="S{(at + 1) % 9}"/>'
        for at in range(9)
    )
    many = f"<text:span>{'words ' * 100_000}</text:span>" * 33
    attacks = archive_attacks(victim, port)
    attacks |= {
        "cut short": cut_short(parts),
        "a document type elsewhere": Attack(
            lambda: pack_changed(parts, **{"content.xml": f'<!DOCTYPE x SYSTEM "{web}">{text}'}), read="KEPTWORD"
        ),
        "an entity in the manifest": Attack(
            lambda: pack_changed(
                parts, **{"META-INF/manifest.xml": '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>' + manifest}
            ),
            "document type",
        ),
        "encrypted parts": Attack(
            lambda: pack_changed(
                parts, **{"META-INF/manifest.xml": manifest.replace("/>", f">{_ENCRYPTED}</manifest:file-entry>")}
            ),
            "encrypted",
        ),
        "an encrypted package": Attack(lambda: pack_changed(parts, **{"encrypted-package": b"\x01" * 99}), "encrypted"),
        "macros": Attack(
            lambda: pack_changed(parts, **{"Basic/Standard/Module1.xml": "<a/>"}), read="KEPTWORD", missing="macros"
        ),
        "content of another kind": Attack(
            lambda: pack_changed(parts, **{"content.xml": content(p("KEPTWORD"), other)}), "no text of its kind"
        ),
        "a mimetype of another kind": Attack(
            lambda: pack_changed(parts, mimetype="application/x-executable"), read="KEPTWORD"
        ),
        "objects outside and of itself": Attack(
            lambda: pack_changed(parts, **{"content.xml": text.replace("KEPTWORD", f"KEPTWORD{frame}")}),
            read="KEPTWORD",
            missing="picture",
        ),
        "styles in a loop": Attack(
            lambda: pack_changed(
                parts,
                **{
                    "content.xml": text.replace(
                        "<office:automatic-styles>", f"<office:automatic-styles>{loop}"
                    ).replace("<text:p>", '<text:p text:style-name="S1">')
                },
            ),
            read="KEPTWORD",
        ),
        "a billion blanks": Attack(
            lambda: pack_changed(
                parts, **{"content.xml": text.replace("KEPTWORD", 'KEPTWORD<text:s text:c="999999999"/>')}
            ),
            read="KEPTWORD",
        ),
        "20 million characters": Attack(
            lambda: pack_changed(parts, **{"content.xml": text.replace("KEPTWORD", "KEPTWORD" + many)}),
            read="KEPTWORD",
        ),
        "numbers of a thousand digits": Attack(
            lambda: pack_changed(
                parts,
                **{
                    "content.xml": text.replace(
                        "KEPTWORD", f'KEPTWORD<text:s text:c="{"9" * 999}"/><text:span text:c="-1">x</text:span>'
                    )
                },
            ),
            read="KEPTWORD",
        ),
    }
    return attacks
