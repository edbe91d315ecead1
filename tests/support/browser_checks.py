"""Checks of a page in a browser: widths, colour schemes, contrast, keyboard, print."""

import base64
from typing import Any

from browser import Browser

NARROW, WIDE = 400, 1280
A4 = 794
"""The width of the paper in CSS pixels."""
LOW_CONTRAST = """(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = rgb => {
    const [r, g, b] = rgb.slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = element => {
    for (let e = element; e; e = e.parentElement) {
      const rgba = parse(getComputedStyle(e).backgroundColor);
      if (rgba.length === 3 || rgba[3] === 1) return rgba;
    }
    return [255, 255, 255];
  };
  const found = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const element = nodes.currentNode.parentElement;
    if (!nodes.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element instanceof SVGTitleElement) continue;
    const style = getComputedStyle(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const [dark, light] = [luminance(ink), luminance(paper(element))].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (isLarge ? 3 : 4.5)) found.push([nodes.currentNode.data.trim(), ratio]);
  }
  return found;
})()"""
"""Texts whose contrast is below level AA of WCAG 2.2."""
BROKEN_WORDS = """(() => {
  const found = [];
  for (const cell of document.querySelectorAll('th, td, dt, label, summary, .verdict, nav a')) {
    if (!cell.checkVisibility() || cell.querySelector('code')) continue;
    const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      const words = nodes.currentNode.data.trim().split(/[\\s-]+/).filter(word => word);
      const range = document.createRange();
      range.selectNodeContents(nodes.currentNode);
      const lines = new Set([...range.getClientRects()].map(rect => Math.round(rect.top)));
      if (words.length && lines.size > words.length) found.push(nodes.currentNode.data.trim());
    }
  }
  return found;
})()"""
"""Labels on more lines than they have words."""


def check_page(browser: Browser, address: str, *, max_height: int) -> None:
    """Check a page without scripts: in two widths and colour schemes, by keyboard and printed."""
    papers: dict[str, Any] = {}
    for width in (NARROW, WIDE):
        for scheme in ("light", "dark"):
            browser.show(address, width=width, scheme=scheme)
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.value("document.documentElement.scrollHeight") <= max_height
            assert browser.value(BROKEN_WORDS) == []
            browser.value("document.querySelectorAll('details').forEach(d => d.open = true)")
            assert browser.value(LOW_CONTRAST) == [], (width, scheme)
            papers[scheme] = browser.value(PAPER)
            requested = browser.events_of("Network.requestWillBeSent")
            assert [event["request"]["url"] for event in requested] == [address]
            assert not browser.events_of("Log.entryAdded")
            assert not browser.events_of("Runtime.exceptionThrown")
    assert papers["light"] != papers["dark"]
    _check_keyboard(browser, address, papers)
    _check_print(browser, address)


PAPER = "getComputedStyle(document.body).backgroundColor"
FOCUS = "document.activeElement.matches(':focus-visible') && document.activeElement.{}"


def _check_keyboard(browser: Browser, address: str, papers: dict[str, Any]) -> None:
    """The first stop skips the head, the second chooses the colours, and tables can be scrolled."""
    browser.show(address, width=NARROW, scheme="light")
    browser.press("Tab")
    assert browser.value(FOCUS.format("hash")) == "#main"
    assert browser.value("document.activeElement.getBoundingClientRect().left >= 0")
    browser.press("Tab")
    assert browser.value(FOCUS.format("id")) == "theme-auto"
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.value(FOCUS.format("id")) == "theme-dark"
    assert browser.value(PAPER) == papers["dark"]
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert browser.value(f"{wide}.every(e => e.tabIndex === 0 && e.ariaLabel)")
    tables = "[...document.querySelectorAll('table')]"
    assert browser.value(f"{tables}.every(t => t.parentElement.classList.contains('scroll'))")


def _check_print(browser: Browser, address: str) -> None:
    """Printed from a dark screen, the page is light and fits, and what is folded is printed too."""
    browser.show(address, width=A4, scheme="dark")
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    assert browser.value(PAPER) == "rgb(255, 255, 255)"
    assert browser.value("document.documentElement.scrollWidth") <= A4
    assert browser.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    folded = "[...document.querySelectorAll('details:not(.long) table')]"
    assert browser.value(f"{folded}.every(t => t.getBoundingClientRect().height > 0)")
    printed = browser.call("Page.printToPDF", printBackground=True)
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="")
