"""Settings of a node are checked before the server is asked."""

import pytest

from data_prep.base.errors import InputError
from stforecast.flower.node_settings import NodeSettings

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBbjCCARWgAwIBAgIUPSiM9VeZanquEQKpVVv4QioG1S8wCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBYTAgFw0yNjExMjcwNDEyMTRaGA8yMTI2MTEwMzA0MTIxNFow
DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABINqPVTJsyHL
ZmpO1B82+9itDxjpy2rnsYvdpkKotMkKonSEJ0nv96EN4F4s3gDXBiMFpG4+J+hM
XcNIK/Vw2tKjUzBRMB0GA1UdDgQWBBSWSPeVorXaFq7MBPFqT/ZXrP7RtzAfBgNV
HSMEGDAWgBSWSPeVorXaFq7MBPFqT/ZXrP7RtzAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0cAMEQCIElxll2PEVjCquFZKOelfRY3Bs7I/2MadG7PUF3anlx4
AiBIKtVX8w035nLLkGTQPGBOuykW3d0+J42KaI7jdzJZFA==
-----END CERTIFICATE-----
"""


@pytest.fixture
def files(tmp_path):
    """A cube's, a key's and a certificate's file, as far as they are looked at here."""
    for name, text in {
        "north.nc": "cube", "north": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "north.pub": "ecdsa-sha2-nistp384 AAAA", "ca.crt": AUTHORITY,
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


def settings(files, **changed):
    usual = {
        "superlink": "forecast.example.org:8000", "data": files / "north.nc", "first_client": 3,
        "root_certificates": files / "ca.crt", "key": files / "north",
    }  # fmt: skip
    return NodeSettings(**usual | changed)


def test_the_command_holds_what_was_given(files, monkeypatch):
    monkeypatch.setattr("stforecast.flower.node_settings.find_program", lambda name: name)
    made = settings(files, out=files / "state")
    made.check()
    words = made.command(9094)
    start = ["-m", "stforecast.flower.own_supernode", "--superlink", "forecast.example.org:8000"]
    assert words[1:5] == start
    node = words[words.index("--node-config") + 1]
    assert node == f'data="{files}/north.nc" first-client=3 out="{files}/state"'
    assert f"--auth-supernode-private-key={files}/north" in words
    assert f"--root-certificates={files}/ca.crt" in words
    assert words[words.index("--port") + 1] == "9094"
    assert "--insecure" not in words


def test_a_node_may_require_secure_aggregation(files, monkeypatch):
    monkeypatch.setattr("stforecast.flower.node_settings.find_program", lambda name: name)
    words = settings(files, require_secure_aggregation=True).command(9094)
    node = words[words.index("--node-config") + 1]
    assert node == f'data="{files}/north.nc" first-client=3 require-secure-aggregation=true'


def test_a_node_may_have_a_model_of_its_own(files, monkeypatch):
    monkeypatch.setattr("stforecast.flower.node_settings.find_program", lambda name: name)
    words = settings(files, model="mlp:hidden_size=16").command(9094)
    node = words[words.index("--node-config") + 1]
    assert node == f'data="{files}/north.nc" first-client=3 model="mlp:hidden_size=16"'


@pytest.mark.parametrize("table", [True, False])
def test_a_node_may_name_groups(table, files, monkeypatch):
    monkeypatch.setattr("stforecast.flower.node_settings.find_program", lambda name: name)
    monkeypatch.chdir(files)
    (files / "groups.csv").write_text("cell,district\n")
    made = settings(files, groups="groups.csv" if table else "district", share_totals=True)
    made.check()
    words = made.command(9094)
    node = words[words.index("--node-config") + 1]
    found = f"{files}/groups.csv" if table else "district"
    assert node.endswith(f'share-totals=true groups="{found}"')


def test_an_owner_may_allow_disclosure(files, monkeypatch):
    monkeypatch.setattr("stforecast.flower.node_settings.find_program", lambda name: name)
    words = settings(files, allow_disclosure=True).command(9094)
    node = words[words.index("--node-config") + 1]
    assert node == f'data="{files}/north.nc" first-client=3 allow-disclosure=true'


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"superlink": "nonsense"}, "superlink is 'nonsense'"),
        ({"superlink": "https://a.org:1"}, "superlink is 'https://a.org:1'; .*https://"),
        ({"superlink": "a.org:70000"}, "superlink is 'a.org:70000'"),
        ({"first_client": -1}, "first_client is -1"),
        ({"data": "gone.nc"}, "gone.nc: .*nothing"),
        ({"root_certificates": "gone.crt"}, "gone.crt: .*certificate"),
        ({"root_certificates": "north.pub"}, "north.pub: .*PEM"),
        ({"key": "gone"}, "gone: .*certificate"),
        ({"key": "north.pub"}, "north.pub: .*private key"),
        ({"groups": "gone.csv"}, "gone.csv: .*groups"),
        ({"insecure": True}, "insecure.*certificates"),
    ],
)
def test_what_cannot_be_used_is_named_before_the_server_is_asked(files, changed, message):
    paths = {"data", "root_certificates", "key"}
    changed = {n: files / v if n in paths else v for n, v in changed.items()}
    with pytest.raises(InputError, match=message):
        settings(files, **changed).check()
