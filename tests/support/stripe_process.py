"""Starting the fake Stripe, steering it, and delivering its webhooks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fake_stripe_objects import SECRET

from billing.payments.stripe_provider import StripeProvider

SCRIPT = Path(__file__).with_name("fake_stripe.py")


class StripeProcess:
    """A running fake, which forgets everything when asked to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.provider = StripeProvider(
            "sk_test_x", webhook_secrets=["whsec_old", SECRET], api_base=url
        )

    def act(self, action: str, **params: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/_test/{action}", data=json.dumps(params).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)["result"]

    def state(self) -> dict[str, Any]:
        return self.act("state")

    def counts(self) -> dict[str, int]:
        return self.state()["counts"]

    def objects(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.state()["objects"].values() if each["object"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (found,) = self.objects(kind)
        return found

    def events(self) -> list[tuple[bytes, str]]:
        """Every event so far, signed now."""
        return [(each["payload"].encode(), each["signature"]) for each in self.act("events")]


@contextmanager
def running(folder: Path) -> Iterator[StripeProcess]:
    """A fake Stripe of its own, empty."""
    port_file = folder / "stripe.port"
    process = subprocess.Popen([sys.executable, "-S", str(SCRIPT), str(port_file)])
    try:
        for _ in range(500):
            if port_file.exists() and (text := port_file.read_text()).endswith("\n"):
                yield StripeProcess(f"http://127.0.0.1:{text.strip()}")
                return
            assert process.poll() is None
            time.sleep(0.01)
        raise TimeoutError("the fake Stripe did not start")
    finally:
        process.terminate()
        process.wait()
