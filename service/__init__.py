"""The serving side of Heed: bundles in, HTTP out. No torch anywhere."""
