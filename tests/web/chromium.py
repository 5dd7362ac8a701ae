"""Chromium, where there is one."""

import shutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def launch(playwright):
    """Start Chromium without its sandbox, which containers lack."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
