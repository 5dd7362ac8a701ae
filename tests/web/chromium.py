"""Chromium, where there is one: without the parts that draw windows, if it has such a program."""

import shutil

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright):
    """Start Chromium without its sandbox, which containers lack."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
