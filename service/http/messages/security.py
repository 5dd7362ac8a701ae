"""The security headers of every answer."""

from service.formats.html import script_hashes

# The policy forbids to load anything from other hosts, to run scripts written into a page, and to
# show a page inside another; the page may show itself twice, to compare. Styles may be inline:
# Swagger UI writes them, and a style runs no code. Images are also data: and blob:.
POLICY = (
    "default-src 'self'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; base-uri 'none';"
    " form-action 'self'; frame-ancestors {frames}"
)
CSP = "Content-Security-Policy"
SECURITY_HEADERS = {
    CSP: POLICY.format(hashes="", frames="'none'"),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def policy_for(page: bytes) -> str:
    """Return the policy of the page: its own inline scripts run, by their hashes."""
    hashes = "".join(f" {each}" for each in script_hashes(page))
    return POLICY.format(hashes=hashes, frames="'self'")
