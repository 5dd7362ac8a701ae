"""Run the curl commands that the page copies."""

import json
import subprocess

from playwright.sync_api import expect


def run_curl(page, button):
    """Press a button that copies a command, and return the answer that the command gets."""
    page.locator(button).click()
    expect(page.locator("#status")).to_have_text("Copied.")
    line = page.evaluate("navigator.clipboard.readText()")
    return json.loads(subprocess.check_output(["bash", "-c", line]))
