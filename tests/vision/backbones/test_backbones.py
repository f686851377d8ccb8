import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vision.backbones.backbone as backbone_module
from data_prep.base.errors import InputError
from vision.backbones.backbone import Backbone, FeatureCache, digests_of
from vision.backbones.load import TINY, TINY_GEOMETRY, ViTOptions, load_backbone, vit_from
from vision.backbones.vit import Geometry, ViT, geometry_of


def load(backbone=TINY, input_size=8, **options):
    return load_backbone(ViTOptions(str(backbone), input_size=input_size, **options))


@pytest.fixture
def backbone():
    return load()


def bytes_of(n, channels=3, size=8):
    return torch.randint(256, (n, channels, size, size), dtype=torch.uint8)


def timm_vit(**settings):
    from vision.backbones.load import torchvision_models

    timm = pytest.importorskip("timm") if torchvision_models() else None
    return timm.models.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=0, **settings
    ).eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"init_values": 0.5},
        {"reg_tokens": 2},
        {"reg_tokens": 2, "no_embed_class": True},
    ],
)
def test_tokens_are_timms(settings):
    theirs = timm_vit(**settings)
    for p in theirs.parameters():
        p.data += 0.1 * torch.randn_like(p)
    ours = vit_from(theirs.state_dict(), "timm", heads=2)
    images = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs.forward_features(images))


def test_positions_are_brought_to_the_inputs_grid_as_timm_does():
    theirs = timm_vit(dynamic_img_size=True)
    theirs.pos_embed.data = torch.randn_like(theirs.pos_embed)
    ours = vit_from(theirs.state_dict(), "timm", heads=2)
    images = torch.randn(2, 3, 20, 20)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs.forward_features(images))


def test_prompts_and_prefixes_enter_the_attention():
    """One block by hand, with a prompt token and a prefix."""
    g = Geometry(patch=4, width=4, depth=1, heads=1, hidden=4, grid=1)
    vit = ViT(g).requires_grad_(False)
    block = vit.blocks[0]
    images, prompt = torch.randn(1, 3, 4, 4), torch.randn(1, 1, 4)
    key, value = torch.randn(1, 2, 4), torch.randn(1, 2, 4)
    tokens = vit.embed(images)[0]
    tokens = torch.stack([tokens[0], prompt[0, 0], tokens[1]])
    qkv = block.norm1(tokens) @ block.attn.qkv.weight.T + block.attn.qkv.bias
    q, k, v = qkv[:, :4], torch.cat([key[0], qkv[:, 4:8]]), torch.cat([value[0], qkv[:, 8:]])
    mixed = (q @ k.T / 2).softmax(-1) @ v
    tokens = tokens + block.attn.proj(mixed)
    tokens = tokens + block.mlp["fc2"](
        torch.nn.functional.gelu(block.mlp["fc1"](block.norm2(tokens)))
    )
    torch.testing.assert_close(vit(images, prompt, {0: (key, value)})[0], vit.norm(tokens))


def test_sizes_are_read_from_weights():
    g = Geometry(
        patch=2, width=128, depth=3, heads=2, hidden=64, grid=3, registers=1, layer_scale=True
    )
    assert geometry_of(ViT(g).state_dict()) == g


def test_a_weight_file_in_half_precision_gives_the_same_network(tmp_path):
    vit = ViT(TINY_GEOMETRY)
    half = {name: t.half() for name, t in vit.state_dict().items()}
    save_file({**half, "head.weight": torch.zeros(2, 16)}, tmp_path / "vit.safetensors")
    # Its width of 16 stands for one head where nobody says otherwise.
    expected = vit_from({name: t.float() for name, t in half.items()}, "x", heads=1)
    loaded = load(tmp_path / "vit.safetensors", normalisation="half")
    images = bytes_of(2)
    tokens = expected(images / 127.5 - 1)
    torch.testing.assert_close(loaded.query(images), tokens[:, 0])


def test_pooling_and_blocks():
    torch.manual_seed(3)
    whole = ViT(TINY_GEOMETRY)
    images = bytes_of(2)
    torch.manual_seed(3)
    mean = load(pool="mean", blocks=2)
    assert mean.depth == 2
    del whole.blocks[2:]
    half = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    tokens = whole((images / 255 - half) / std)
    torch.testing.assert_close(mean.query(images), tokens[:, 1:].mean(1))
    prompts = torch.randn(2, 3, 16)
    tokens = whole((images / 255 - half) / std, prompts)
    torch.testing.assert_close(mean.prompted(images, prompts), tokens[:, 4:].mean(1))
    torch.testing.assert_close(
        mean.prompted(images, prompts, read="prompts"), tokens[:, 1:4].mean(1)
    )


def test_grey_images_of_any_size_are_brought_to_the_backbones(backbone):
    grey = bytes_of(2, channels=1, size=5)
    rgb = grey.repeat(1, 3, 1, 1)
    torch.testing.assert_close(backbone.query(grey), backbone.query(rgb))
    assert backbone.query(grey[None]).shape == (1, 2, 16)


def counted(backbone, monkeypatch):
    runs = []
    run = Backbone._run
    monkeypatch.setattr(
        Backbone, "_run", lambda self, images, *rest: runs.append(1) or run(self, images, *rest)
    )
    return runs


def test_an_image_is_queried_once(backbone, monkeypatch):
    runs = counted(backbone, monkeypatch)
    images = bytes_of(5)
    first = backbone.query(images)
    again = backbone.query(images.flip(0)[None]).flip(1)
    assert len(runs) == 1
    assert torch.equal(first, again[0])
    assert not first.requires_grad


def test_a_feature_does_not_depend_on_what_is_queried_beside_it():
    images = bytes_of(70)
    together = load()
    alone = copy.copy(together)
    alone._queries = FeatureCache(together.width)
    features = together.query(images)
    for i in (0, 33, 69):
        assert torch.equal(alone.query(images[i : i + 1])[0], features[i])


def test_prompted_features_are_remembered_only_without_gradients(backbone, monkeypatch):
    runs = counted(backbone, monkeypatch)
    images, prompts = bytes_of(2)[None], torch.randn(1, 2, 3, 16, requires_grad=True)
    with torch.no_grad():
        first = backbone.prompted(images, prompts)
        assert torch.equal(backbone.prompted(images, prompts), first)
        assert len(runs) == 1
        backbone.prompted(images, prompts + 1)
        backbone.prompted(images, prompts, read="prompts")
        assert len(runs) == 3
    trained = backbone.prompted(images, prompts)
    torch.testing.assert_close(trained, first)
    # One value, not their sum, which normalisation makes the same for any prompts.
    (gradient,) = torch.autograd.grad(trained[0, 0, 0], prompts)
    assert gradient[0, 0].any()
    assert not gradient[0, 1].any()


def test_a_copy_of_a_method_shares_the_backbone(backbone):
    assert copy.deepcopy({"it": backbone})["it"] is backbone


def test_features_stay_on_disk(tmp_path, monkeypatch):
    images = bytes_of(3)
    torch.manual_seed(1)
    features = load(feature_cache=str(tmp_path)).query(images)
    torch.manual_seed(1)
    again = load(feature_cache=str(tmp_path))
    runs = counted(again, monkeypatch)
    assert torch.equal(again.query(images), features)
    assert not runs
    torch.manual_seed(2)
    other = load(feature_cache=str(tmp_path)).query(images)
    assert not torch.equal(other, features)
    assert runs


def test_a_damaged_cache_is_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"a\.npy: "):
        FeatureCache(4, tmp_path)
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(InputError, match="holds float64"):
        FeatureCache(4, tmp_path)


def test_a_full_cache_forgets_the_oldest():
    cache = FeatureCache(1, limit=2)
    cache.add([b"a", b"b"], torch.tensor([[1.0], [2.0]]))
    cache.add([b"c"], torch.tensor([[3.0]]))
    assert list(cache.known([b"a", b"b", b"c"])) == [b"b", b"c"]


def test_a_cache_of_no_size_keeps_nothing():
    cache = FeatureCache(1, limit=0)
    cache.add([b"a"], torch.tensor([[1.0]]))
    assert not cache.known([b"a"])
    assert not len(cache)


def test_digests_tell_rows_and_salts_apart():
    rows = torch.arange(4.0).view(2, 2)
    assert len({*digests_of(rows), *digests_of(rows, rows), *digests_of(rows, salt="x")}) == 6


def test_narrow_arithmetic_is_near():
    torch.manual_seed(1)
    exact = load()
    torch.manual_seed(1)
    narrow = load(precision="bfloat16")
    assert exact.fingerprint() != narrow.fingerprint()
    images = bytes_of(4)
    a, b = exact.query(images), narrow.query(images)
    assert b.dtype == torch.float32
    assert 0 < ((a - b).norm() / a.norm()) < 0.02


@pytest.mark.repeats
def test_the_offline_vit_tells_real_classes_apart(data_dir, images_dir, monkeypatch):
    monkeypatch.setattr(backbone_module, "CHUNK_ON_CPU", 20)
    found = list((data_dir / "models").glob("*.safetensors"))
    if not found:
        pytest.skip("no weights of a ViT")
    with np.load(images_dir / "cifar10-subset.npz") as arrays:
        labels = arrays["labels"]
        some = np.concatenate([np.flatnonzero(labels == c)[:10] for c in (0, 7)])
        images = torch.from_numpy(arrays["images"][some]).permute(0, 3, 1, 2).contiguous()
    backbone = load(found[0], input_size=56)
    assert (backbone.width, backbone.depth) == (384, 12)
    features = backbone.query(images).view(2, 10, -1)
    means = features[:, :5].mean(1)
    nearest = torch.cdist(features[:, 5:].flatten(0, 1), means).argmin(1).view(2, 5)
    assert (nearest == torch.tensor([[0], [1]])).float().mean() >= 0.8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"input_size": 10}, "multiple of 4"),
        ({"input_size": 8, "blocks": 6}, "has 5"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        load(**settings)


def test_what_is_no_plain_vit_is_refused(tmp_path):
    with pytest.raises(InputError, match="as safetensors"):
        load(tmp_path / "missing.safetensors")
    weights = ViT(TINY_GEOMETRY).state_dict()
    save_file({**weights, "norm_pre.weight": torch.ones(16)}, tmp_path / "clip.safetensors")
    with pytest.raises(InputError, match=r"norm_pre\.weight: found \(16,\)"):
        load(tmp_path / "clip.safetensors")
    save_file({"conv1.weight": torch.ones(1)}, tmp_path / "resnet.safetensors")
    with pytest.raises(InputError, match="patch_embed"):
        load(tmp_path / "resnet.safetensors")


OWN = Geometry(patch=7, width=24, depth=3, heads=4, hidden=20, grid=3, registers=1)


def own_file(folder, **changed):
    """A file of a ViT of unusual sizes, some weights of which are changed or None."""
    weights = {**ViT(OWN).state_dict(), "head.weight": torch.ones(5, 24), **changed}
    path = folder / "own.safetensors"
    save_file({n: t.half().contiguous() for n, t in weights.items() if t is not None}, path)
    return str(path)


def test_a_users_own_file_of_any_size_is_a_backbone(tmp_path):
    images = bytes_of(2, size=20)
    vit = ViT(OWN)
    path = own_file(tmp_path, **vit.state_dict())
    backbone = load(path, input_size=21, heads=4)
    assert (backbone.width, backbone.depth) == (24, 3)
    exact = Backbone(vit, input_size=21, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    expected = exact.query(images)
    torch.testing.assert_close(backbone.query(images), expected, rtol=0.02, atol=0.02)
    other = load(path, input_size=21, heads=2).query(images)
    assert (other - expected).norm() > 10 * (backbone.query(images) - expected).norm()


@pytest.mark.parametrize(
    ("name", "weight", "words"),
    [
        ("blocks.2.attn.qkv.weight", torch.ones(72, 20), r"found \(72, 20\), expected \(72, 24\)"),
        ("blocks.1.norm2.bias", None, r"nothing, .*\(24,\)"),
        ("blocks.0.attn.q_norm.weight", torch.ones(6), r"\(6,\), .*nothing"),
        ("reg_token", None, "11 position"),
        ("pos_embed", None, "no pos_embed, .*e.g. "),
    ],
)
def test_a_weight_that_does_not_fit_is_named(tmp_path, name, weight, words):
    path = own_file(tmp_path, **{name: weight})
    with pytest.raises(InputError, match=words) as e:
        load(path, input_size=21, heads=4)
    assert path in str(e.value)
    if "expected" in words:
        assert f"{name}: found" in str(e.value)
        assert "width 24, 3 blocks and 7 px patches for images of 21 px" in str(e.value)


def test_heads_that_do_not_divide_the_width_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"5 attention .* 24"):
        load(own_file(tmp_path), input_size=21, heads=5)


def test_timms_names_are_known():
    timm_vit()
    with pytest.raises(InputError, match=r"timm .* 'vit_enormous'"):
        load("vit_enormous", input_size=224)


@pytest.mark.parametrize("answers", [False, True])
def test_a_hub_without_an_answer_is_asked_once(monkeypatch, caplog, tmp_path, answers):
    timm_vit()
    import huggingface_hub
    import timm

    asked, constants = [], huggingface_hub.constants

    class Session:
        def head(self, address, timeout):
            asked.append(address)
            if not answers:
                raise OSError("no route to host")

    def refused(*args, **kwargs):
        assert not constants.HF_HUB_OFFLINE
        raise OSError("disk full")

    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    if answers:
        monkeypatch.setattr(timm, "create_model", refused)
    with pytest.raises(InputError) as e:
        load("vit_tiny_patch16_224.augreg_in21k", input_size=224)
    assert ("(OSError: disk full)" if answers else "(no network)") in str(e.value)
    assert "huggingface.co/timm/vit_tiny_patch16_224.augreg_in21k; give" in str(e.value)
    assert "backbone and normalisation='half'" in str(e.value)
    assert asked == [constants.ENDPOINT]
    assert not caplog.records
    assert not constants.HF_HUB_OFFLINE
