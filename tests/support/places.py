"""Where tests put what belongs to none of them."""

from __future__ import annotations

APP_FOLDERS = "ESPALIER_TEST_APPS"
"""Names the folder for the keymaps of apps: pytest removes it with those of earlier runs, also where a worker is killed."""
