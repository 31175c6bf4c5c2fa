"""A Dask scheduler that cannot be asked at all is one line, and leaves no client behind."""

import distributed
import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.dask_client import connect


@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_an_encrypted_connection_needs_certificates(scheme):
    with pytest.raises(InputError, match=rf"{scheme}://x:1: .*certificates .*tcp://"):
        connect(f"{scheme}://x:1")


def test_a_kind_of_connection_whose_package_is_missing(monkeypatch):
    def client(*given, **more):
        raise ModuleNotFoundError("No module named 'ucp'")

    monkeypatch.setattr(distributed, "Client", client)
    with pytest.raises(InputError, match=r"ucx://x:1: .*'ucp'; "):
        connect("ucx://x:1")
