"""Books in EPUB, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from support.foreign.office import Attack, Victim, archive_attacks, pack_changed, pack_parts

XHTML = "application/xhtml+xml"
CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
ENCRYPTED = (
    '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" xmlns:e="http://www.w3.org/2001/04/xmlenc#">'
    '<e:EncryptedData><e:CipherData><e:CipherReference URI="OEBPS/{}"/></e:CipherData></e:EncryptedData></encryption>'
)


def page(body: str, head: str = "") -> str:
    """Return a section of a book."""
    return (
        '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml">'
        f"<head><title>x</title>{head}</head><body>{body}</body></html>"
    )


def package(hrefs: Mapping[str, str], spine: str, about: str = "") -> str:
    """Return a package that lists these files."""
    items = "".join(
        f'<item id="{name}" href="{href}" media-type="{"image/png" if href.endswith(".png") else XHTML}"/>'
        for name, href in hrefs.items()
    )
    refs = "".join(f'<itemref idref="{name}"/>' for name in spine.split())
    return (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<metadata>{about}</metadata><manifest>{items}</manifest><spine>{refs}</spine></package>"
    )


def book_parts(*bodies: str, spine: str = "", about: str = "", **others: str) -> dict[str, str | bytes]:
    """Return the parts of a book with a section for each body; `others` are files that its package lists."""
    names = [f"s{number}" for number in range(1, len(bodies) + 1)]
    hrefs = {name: f"text/{name}.xhtml" for name in names} | others
    return {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": package(hrefs, spine or " ".join(names), about),
        **{f"OEBPS/text/{name}.xhtml": page(body) for name, body in zip(names, bodies, strict=True)},
    }


_OTHERWISE = (
    "a million elements",
    "300 levels",
    "an attribute of 2 MB",
    "300 attributes",
    "entities of entities",
    "a local file as an entity",
    "a web page as an entity",
    "an entity in UTF-16",
    "an encoding that nobody knows",
    "a wrong checksum",
    "the same part twice",
)
"""Attacks on XML: a section is read as a page, which has no entities of its own."""


def epub_attacks(port: int) -> dict[str, Attack]:
    """Return hostile books; a port of this machine may be asked for nothing."""
    web = f"http://127.0.0.1:{port}/x"
    victim = Victim(book_parts, "META-INF/container.xml", "OEBPS/text/s1.xhtml", "div")
    parts = book_parts("KEPTWORD")
    shared = {name: each for name, each in archive_attacks(victim, port).items() if name not in _OTHERWISE}
    outside = (
        f'<p>KEPTWORD</p><img src="{web}"/><iframe src="{web}"></iframe><object data="{web}"></object>'
        f'<script src="{web}"></script><link rel="stylesheet" href="{web}"/><video src="{web}"></video>'
        f'<meta http-equiv="refresh" content="0;url={web}"/><img src="file:///etc/passwd"/>'
    )
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    bomb = f'<!DOCTYPE x [<!ENTITY l0 "lol">{lol}]>'
    read_file = '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>'
    opf = str(parts["OEBPS/book.opf"])

    def body(inside: str) -> Callable[[], bytes]:
        return lambda: pack_parts(book_parts(f"<p>KEPTWORD</p>{inside}"))

    def section(doctype: str) -> Callable[[], bytes]:
        return lambda: pack_parts({**parts, "OEBPS/text/s1.xhtml": f"{doctype}<html><p>KEPTWORD &l9;&f;</p></html>"})

    def listing(text: str) -> Callable[[], bytes]:
        return lambda: pack_parts({**parts, "OEBPS/book.opf": text})

    return shared | {
        "a million elements": Attack(body("<b/>" * 1_000_000), read="KEPTWORD", missing="its first 500,000 tags"),
        "100,000 levels": Attack(body("<div>" * 100_000), read="KEPTWORD"),
        "an attribute of 2 MB": Attack(body(f'<a b="{"x" * 2_000_000}"/>'), read="KEPTWORD"),
        "100,000 attributes": Attack(body("<a " + 'b="" ' * 100_000 + "/>"), read="KEPTWORD"),
        "entities of entities": Attack(section(bomb), read="KEPTWORD"),
        "a local file as an entity": Attack(section(read_file), read="KEPTWORD"),
        "entities of entities in the list": Attack(listing(bomb + opf.replace("s1", "&l9;")), "document type|no text"),
        "a local file in the list": Attack(
            listing(read_file + opf.replace("</metadata>", "&f;</metadata>")), "document type"
        ),
        "a document type elsewhere": Attack(listing(f'<!DOCTYPE x SYSTEM "{web}">{opf}'), read="KEPTWORD"),
        "a list of 6 MB": Attack(listing(opf + " " * 6_000_000), "lists too much"),
        "one section 100,000 times": Attack(
            lambda: pack_parts(book_parts("KEPTWORD " + "words " * 200, spine="s1 " * 100_000)),
            read="KEPTWORD",
            missing="too much to read",
        ),
        "a section that is the list": Attack(listing(opf.replace("text/s1.xhtml", "book.opf")), "no text of its kind"),
        "a section above the archive": Attack(
            listing(opf.replace("text/s1.xhtml", "../../../../etc/passwd")), read="^$", missing="not in the file"
        ),
        "a section elsewhere": Attack(listing(opf.replace("text/s1.xhtml", web)), read="^$", missing="not in the file"),
        "everything outside": Attack(body(outside), read="KEPTWORD", missing="a page in a frame"),
        "frames in frames": Attack(
            body(f'<iframe srcdoc="{"&lt;iframe srcdoc=" * 500}"></iframe>' * 500), read="KEPTWORD"
        ),
        "encrypted sections": Attack(
            lambda: pack_changed(parts, **{"META-INF/encryption.xml": ENCRYPTED.format("text/s1.xhtml")}), "encrypted"
        ),
        "a section of noise": Attack(
            lambda: pack_changed(parts, **{"OEBPS/text/s1.xhtml": bytes(range(256)) * 2_000}),
            read="^$",
            missing="damaged",
        ),
        "20 million characters": Attack(body("<p>words words</p>" * 1_000_000), read="KEPTWORD", missing="section 1"),
        "a list of itself": Attack(
            lambda: pack_changed(
                parts, **{"META-INF/container.xml": CONTAINER.replace("OEBPS/book.opf", "META-INF/container.xml")}
            ),
            "no text of its kind",
        ),
        "links without end": Attack(body('<a href="https://x' * 100_000), read="KEPTWORD"),
        "macros": Attack(lambda: pack_changed(parts, **{"x/vbaProject.bin": "x"}), read="KEPTWORD"),
    }
