"""A parsed HTML page, the data of a viewer page, and XSS payloads."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any

PAYLOADS = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</title><svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "<a href='https://example.org/'>&amp;</a>",
    "</style><iframe srcdoc='<script>1</script>'>",
)


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def page_data(page: str) -> dict[str, Any]:
    """What the script of a viewer page reads."""
    found = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', page)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))
