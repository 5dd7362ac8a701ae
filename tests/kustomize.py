"""Merge a patch into a manifest as Kustomize does."""


def patch(base, change):
    """Merge mappings by key, and lists of named things by name: those of the patch come first."""
    if isinstance(base, dict):
        own = {key: patch(base[key], each) if key in base else each for key, each in change.items()}
        return own | {key: each for key, each in base.items() if key not in own}
    if isinstance(base, list):
        old, new = ({each["name"]: each for each in part} for part in (base, change))
        return [*patch(old, new).values()]
    return change
