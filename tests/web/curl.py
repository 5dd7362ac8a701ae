"""Use the page's Export menu, and run the curl commands that the page copies."""

import json
import subprocess

from playwright.sync_api import expect


def press_export(page, button):
    """Choose a button of the Export menu."""
    page.locator("#export summary").click()
    page.locator(button).click()


def run_curl(page, button):
    """Press a button that copies a command, and return the answer that the command gets."""
    if page.locator(f"#export {button}").count():
        press_export(page, button)
    else:
        page.locator(button).click()
    expect(page.locator("#status")).to_have_text("Copied.")
    line = page.evaluate("navigator.clipboard.readText()")
    return json.loads(subprocess.check_output(["bash", "-c", line]))
