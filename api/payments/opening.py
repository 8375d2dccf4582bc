"""Which payment provider the settings ask for."""

from __future__ import annotations

from api.settings import Settings
from billing.payments.provider import Provider


def open_provider(settings: Settings) -> Provider | None:
    """Stripe where a key of it is set, else none. Talks to nobody yet."""
    if settings.stripe_api_key is None:
        return None
    from billing.payments.stripe_provider import StripeProvider  # noqa: PLC0415 - a large SDK

    secrets = (settings.stripe_webhook_secrets or "").split(",")
    return StripeProvider(
        settings.stripe_api_key,
        webhook_secrets=[secret.strip() for secret in secrets if secret.strip()],
        api_base=settings.stripe_api_base,
    )
