"""Sets in folders, `.npz` files and CIFAR's binary files, written here."""

from itertools import count

import numpy as np
import pytest
import torch
from PIL import Image

from data_prep.base.errors import InputError
from vision.datasets import load


@pytest.fixture
def paint(tmp_path):
    """Saves one-coloured pictures; the colour's red counts them."""
    number = count()

    def save(*paths, size=(4, 4), mode="RGB"):
        for name in paths:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            red = next(number)
            Image.new("RGB", size, (red, 9, 9)).convert(mode).save(path)
        return tmp_path

    return save


def test_folder_of_classes(paint):
    root = paint(*(f"pets/{c}/{i}.png" for c in ("dog", "cat") for i in range(5)))
    (root / "pets/notes.txt").write_text("not an image")
    (root / "pets/cat/._0.png").write_bytes(b"a Mac's note")
    images = load("folder", root / "pets")
    assert images.class_names == ("cat", "dog")
    assert images.domain_names == ("pets",)
    assert images.images[:, 0, 0, 0].tolist() == [*range(5, 10), *range(5)]
    assert images.labels.tolist() == [0] * 5 + [1] * 5
    assert images.labels[images.is_test].tolist() == [0, 1]


@pytest.mark.parametrize("layout", ["{part}/{domain}/{cls}", "{domain}/{part}/{cls}"])
def test_folder_of_parts_domains_and_classes(paint, layout):
    for part in ("train", "val"):
        for domain in ("art", "photo"):
            for cls in ("cat", "train"):
                paint(f"all/{layout.format(part=part, domain=domain, cls=cls)}/a.png")
    images = load("folder", paint() / "all")
    assert images.class_names == ("cat", "train")
    assert images.domain_names == ("art", "photo")
    red = images.images[:, 0, 0, 0].long()
    assert torch.equal(images.is_test, red >= 4)
    assert torch.equal(images.domains, red // 2 % 2)
    assert torch.equal(images.labels, red % 2)


def test_a_training_folder_alone_is_split(paint):
    root = paint(*(f"train/cat/{i}.png" for i in range(10)))
    assert load("folder", root).is_test.sum() == 2


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a.png"], "under 0 folders"),
        (["x/y/cat/a.png"], "under 3 folders"),
        (["cat/a.png", "art/cat/a.png"], "1 folders|2 folders"),
        (["train/cat/a.png", "test/cat/a.png", "val/cat/a.png"], "parts .*test, train, val"),
        (["test/cat/a.png"], "parts .*test;"),
        (["train/cat/a.png", "dog/a.png"], r"parts .*\(none\), train"),
        (["train/test/cat/a.png"], "at once"),
        (["train/a.png", "Test/a.png"], r"\(Test, train\)"),
        (["cat/train/a.png", "cat/test/a.png", "dog/train/a.png"], r"\(test, train\)"),
    ],
)
def test_folders_that_say_no_class(paint, paths, message):
    with pytest.raises(InputError, match=message):
        load("folder", paint(*paths))


def test_images_of_different_sizes_need_a_size(paint):
    root = paint("cat/a.png")
    paint("cat/b.jpg", size=(6, 8))
    with pytest.raises(InputError, match=r"b\.jpg: 8 × 6, .*a\.png is 4 × 4; .* size"):
        load("folder", root)
    assert load("folder", root, size=5).images.shape == (2, 3, 5, 5)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_images_of_all_modes_become_rgb(paint, mode):
    name = "cat/a.tif" if mode == "CMYK" else "cat/a.png"
    assert load("folder", paint(name, mode=mode)).images.shape == (1, 3, 4, 4)


@pytest.mark.parametrize("parts", [("Train", "Test"), ("training", "TESTING"), ("TRAIN", "Val")])
def test_parts_have_any_case(paint, parts):
    root = paint(*(f"pets/{part}/{cls}/a.png" for part in parts for cls in ("cat", "dog")))
    images = load("folder", root / "pets")
    assert images.domain_names == ("pets",)
    assert images.is_test.tolist() == [red >= 2 for red in images.images[:, 0, 0, 0].tolist()]


def test_names_are_equal_however_accents_are_stored(paint):
    root = paint("train/caf\u00e9/a.png", "train/th\u00e9/a.png")
    root = paint("test/cafe\u0301/a.png", "test/the\u0301/a.png")
    images = load("folder", root)
    assert images.class_names == ("caf\u00e9", "th\u00e9")
    assert images.labels[images.is_test].tolist() == [0, 1]


def test_transparent_parts_are_white(tmp_path):
    """The hidden colour of transparent pixels is arbitrary, often that of the visible ones."""
    pixels = np.full((4, 6, 4), 40, np.uint8)
    pixels[..., 3] = 255
    pixels[1, :2, 3] = 0, 128
    expected = pixels[..., :3].copy()
    expected[1, 0], expected[1, 1] = 255, 40 * 128 / 255 + 255 * 127 / 255
    (tmp_path / "cat").mkdir()
    colour = Image.fromarray(pixels)
    colour.save(tmp_path / "cat/a.png")
    colour.convert("LA").save(tmp_path / "cat/b.png")
    Image.fromarray(pixels[..., 0]).save(tmp_path / "cat/c.png", transparency=40)
    palette = colour.convert("RGB").quantize(4)
    palette.save(tmp_path / "cat/d.gif", transparency=palette.getpixel((0, 0)))
    found = load("folder", tmp_path).images.permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(found[:2], [expected, expected], atol=1)
    assert (found[:, 3] == [[[40]], [[40]], [[255]], [[255]]]).all()


def test_pictures_are_turned_upright(tmp_path):
    """Cameras store how they were held in the orientation of the EXIF data; 6 is a right turn."""
    (tmp_path / "cat").mkdir()
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, :3] = 250
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "cat/a.png", exif=exif)
    Image.fromarray(np.rot90(pixels, -1)).save(tmp_path / "cat/b.png")
    images = load("folder", tmp_path).images
    assert images.shape == (2, 3, 6, 4)
    assert torch.equal(images[0], images[1])
    assert images[0, 0, :, 0].tolist() == [250] * 3 + [0] * 3


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.uint16, "a.png"), (np.int32, "a.tif"), (np.float32, "a.tif")]
)
def test_values_of_more_than_8_bits_are_refused(tmp_path, dtype, name):
    """Pillow would cut 1,000 off at 255 and round 0.5 to 0."""
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.full((4, 4), 1000, dtype)).save(tmp_path / "cat" / name)
    with pytest.raises(InputError, match=f"cat/{name}: .* 8 bits .mode (I|F)"):
        load("folder", tmp_path)


def test_other_files_beside_images_are_told(paint, caplog):
    root = paint("cat/a.png", "dog/a.png")
    (root / "readme.txt").write_text("not beside images")
    load("folder", root)
    assert not caplog.messages
    (root / "dog/a.png").rename(root / "dog/a.jfif")
    paint("dog/b.png")
    load("folder", root)
    (told,) = caplog.messages
    assert told.startswith(f"left out: {root / 'dog/a.jfif'}; names of images end in .bmp")


def test_a_damaged_image_is_named(paint):
    root = paint("cat/a.png", "cat/b.png")
    (root / "cat/b.png").write_bytes((root / "cat/b.png").read_bytes()[:40])
    with pytest.raises(InputError, match=r"cat/b\.png: "):
        load("folder", root)


def test_pacs_and_office31_layouts(paint):
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        paint(*(f"PACS/kfold/{domain}/{c}/{i}.jpg" for c in ("dog", "house") for i in range(5)))
    root = paint("PACS/splits/other/x.jpg")
    images = load("pacs", root)
    assert (len(images), len(images.domain_names), len(images.class_names)) == (40, 4, 2)
    assert images.is_test.sum() == 8
    for domain in ("amazon", "dslr", "webcam"):
        paint(f"Office31/{domain}/images/mug/a.jpg", f"Office31/{domain}/images/pen/a.jpg")
    images = load("office31", root)
    assert (images.domain_names, images.class_names) == (
        ("amazon", "dslr", "webcam"),
        ("mug", "pen"),
    )


def test_office_home_and_digits_dg_layouts(paint):
    home = "OfficeHomeDataset_10072016"
    for domain in ("Art", "Clipart", "Product", "Real World"):
        paint(*(f"{home}/{domain}/{c}/{i}.jpg" for c in ("Bed", "Alarm_Clock") for i in range(5)))
    root = paint(f"{home}/ImageInfo.csv.png")
    images = load("office-home", root)
    assert images.domain_names == ("Art", "Clipart", "Product", "Real World")
    assert images.class_names == ("Alarm_Clock", "Bed")
    assert (len(images), int(images.is_test.sum())) == (40, 8)
    for domain in ("mnist", "mnist_m", "svhn", "syn"):
        paint(*(f"digits_dg/{domain}/train/{digit}/a.jpg" for digit in range(10)))
        paint(*(f"digits_dg/{domain}/val/{digit}/b.jpg" for digit in range(10)))
    images = load("digits-dg", root)
    assert images.class_names == tuple("0123456789")
    assert images.is_test.tolist() == [*[False] * 10, *[True] * 10] * 4
    assert images.domains.bincount().tolist() == [20] * 4


DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


@pytest.fixture
def domainnet(paint):
    """A small DomainNet with the official lists, and one image that they leave out."""
    for domain in DOMAINNET:
        names = [f"{domain}/{c}/{domain}_{i}.jpg" for c in ("axe", "zoo") for i in range(3)]
        root = paint(*(f"domainnet/{name}" for name in names))
        for part, chosen in (("train", names[::3] + names[1::3]), ("test", names[2::3])):
            lines = "".join(f"{name} {int('zoo' in name)}\n" for name in chosen)
            (root / f"domainnet/{domain}_{part}.txt").write_text(lines)
    return paint("domainnet/real/axe/real_duplicate.jpg")


def test_domainnet_is_split_by_its_lists(domainnet):
    images = load("domainnet", domainnet)
    assert images.domain_names == DOMAINNET
    assert (len(images), int(images.is_test.sum())) == (36, 12)
    assert torch.equal(images.labels[images.is_test], torch.tensor([0, 1] * 6))
    for domain in DOMAINNET:
        for part in ("train", "test"):
            (domainnet / f"domainnet/{domain}_{part}.txt").unlink()
    images = load("domainnet", domainnet)
    assert len(images) == 37
    assert "0.2 of each class" in images.source


def test_what_domainnet_lacks_is_named(domainnet):
    (domainnet / "domainnet/sketch/zoo/sketch_1.jpg").unlink()
    with pytest.raises(InputError, match=r"sketch/zoo/sketch_1\.jpg: "):
        load("domainnet", domainnet)
    (domainnet / "domainnet/real_test.txt").unlink()
    with pytest.raises(InputError, match=r"real_test\.txt: .*list"):
        load("domainnet", domainnet)


@pytest.mark.parametrize(
    ("name", "folder", "missing"),
    [
        ("office-home", "office_home/Art/Bed", "clipart, product, real_world"),
        ("digits-dg", "digits_dg/svhn/train/0", "mnist, mnist_m, syn"),
        ("domainnet", "domainnet/real/axe", "clipart, infograph, painting, quickdraw, sketch"),
    ],
)
def test_missing_domains_are_listed(paint, name, folder, missing):
    with pytest.raises(InputError, match=f"folder {missing}; get "):
        load(name, paint(f"{folder}/a.jpg"))
    with pytest.raises(InputError, match=f"nor a file {name}"):
        load(name, paint("elsewhere/a.jpg") / "elsewhere")


def test_a_missing_domain_is_named(paint):
    root = paint("amazon/mug/a.jpg", "Caltech/mug/a.jpg", "dslr/mug/a.jpg")
    with pytest.raises(InputError, match="folder webcam"):
        load("office-caltech10", root)
    paint("webcam/mug/a.jpg")
    assert load("office-caltech10", root).domain_names == ("Caltech", "amazon", "dslr", "webcam")


@pytest.fixture
def tiny(paint):
    root = paint(*(f"tiny-imagenet-200/train/{w}/images/{w}_0.JPEG" for w in ("n02", "n01")))
    paint("tiny-imagenet-200/val/images/val_0.JPEG", "tiny-imagenet-200/val/images/val_1.JPEG")
    folder = root / "tiny-imagenet-200"
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\n"
    )
    return root


def test_tiny_imagenet(tiny):
    images = load("tiny-imagenet", tiny)
    assert images.class_names == ("n01", "n02")
    assert images.labels.tolist() == [1, 0, 1, 0]
    assert images.is_test.tolist() == [False, False, True, True]


def test_tiny_imagenet_damaged(tiny):
    listing = tiny / "tiny-imagenet-200/val/val_annotations.txt"
    listing.write_text("val_0.JPEG\tn02\nval_1.JPEG\tn03\n")
    with pytest.raises(InputError, match=r"annotations\.txt, line 2: .*'val_1\.JPEG' .* 'n03'"):
        load("tiny-imagenet", tiny)
    listing.write_text("val_7.JPEG\tn02\n")
    with pytest.raises(InputError, match=r"val_7\.JPEG: "):
        load("tiny-imagenet", tiny)
    (tiny / "tiny-imagenet-200/train/n01/images/n01_0.JPEG").unlink()
    with pytest.raises(InputError, match=r"images .*n01"):
        load("tiny-imagenet", tiny)


def test_imagenet_r(paint):
    names = [
        f"imagenet-r/n0{w}/{r}_{i}.jpg" for w in (1, 2) for r in ("art", "toy") for i in (0, 1)
    ]
    root = paint(*names)
    images = load("imagenet-r", root)
    assert images.domain_names == ("imagenet-r",)
    assert images.labels.tolist() == [0] * 4 + [1] * 4


PIXELS = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (PIXELS, PIXELS.transpose(0, 3, 1, 2)),
        (PIXELS.transpose(0, 3, 1, 2), PIXELS.transpose(0, 3, 1, 2)),
        (PIXELS[..., 0], PIXELS[:, None, :, :, 0]),
    ],
)
def test_npz_layouts(tmp_path, pixels, expected):
    path = tmp_path / "mine.npz"
    np.savez(path, images=pixels, labels=np.array([1, 0], np.uint8), is_test=[False, False])
    images = load("npz", path)
    np.testing.assert_array_equal(images.images, expected)
    assert (images.class_names, images.domain_names) == (("0", "1"), ("mine",))
    assert images.labels.tolist() == [1, 0]
    assert images.name == "mine"  # Two files are two data sets in tables.


def test_npz_with_domains(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, images=PIXELS, labels=[1, 1], domains=[1, 0], class_names=["a", "b"])
    images = load("npz", path)
    assert images.class_names == ("a", "b")
    assert images.domain_names == ("0", "1")
    assert images.domains.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": PIXELS}, "no labels"),
        ({"images": PIXELS.astype(float), "labels": [0, 0]}, "images are float64"),
        ({"images": PIXELS, "labels": [0.0, 1.0]}, "labels are float64"),
        ({"images": PIXELS, "labels": [0]}, r"labels are int64 \(1,\)"),
        (
            {"images": PIXELS, "labels": [1, 2]},
            "class_names .*1, 2; .*0",
        ),
        ({"images": PIXELS, "labels": [0, 1], "class_names": ["a", "all"]}, "labels .*all"),
        ({"images": PIXELS, "labels": [0, 9]}, "0, 9; .*0 to 1 "),
        (
            {"images": PIXELS, "labels": [0, 1], "is_test": [True, False]},
            "class 0 .*images,",
        ),
        ({"images": PIXELS, "labels": [0, 0], "is_test": [0, 1]}, "is_test is int64"),
        ({"images": PIXELS, "labels": np.array([0, None])}, r"mine\.npz: .*pickle"),
    ],
)
def test_npz_of_another_kind(tmp_path, arrays, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=message):
        load("npz", path)


def test_npz_damaged(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, images=PIXELS, labels=[0, 1])
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"mine\.npz: "):
        load("npz", path)


def test_only_one_file_may_bear_a_sets_name(tmp_path):
    for name in ("cifar100.npz", "cifar10.npz"):
        np.savez(tmp_path / name, images=PIXELS, labels=[0, 1])
    assert load("cifar10", tmp_path).domain_names == ("cifar10",)
    np.savez(tmp_path / "cifar10-b.npz", images=PIXELS, labels=[0, 1])
    with pytest.raises(InputError, match=r"cifar10-b\.npz, cifar10\.npz .* cifar10"):
        load("cifar10", tmp_path)


def record(labels, red, green, blue):
    return bytes(labels) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar10_binary(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i in range(1, 6):
        (folder / f"data_batch_{i}.bin").write_bytes(record([i], i, 20, 30))
    (folder / "test_batch.bin").write_bytes(record([9], 1, 2, 3) + record([0], 4, 5, 6))
    (folder / "batches.meta.txt").write_text("\n".join(f"class{i}" for i in range(10)) + "\n\n")
    images = load("cifar10", tmp_path)
    assert images.labels.tolist() == [1, 2, 3, 4, 5, 9, 0]
    assert images.images[2, :, 31, 31].tolist() == [3, 20, 30]
    assert images.is_test.tolist() == [False] * 5 + [True] * 2
    assert images.class_names[9] == "class9"
    (folder / "test_batch.bin").write_bytes(record([9], 1, 2, 3)[:-1])
    with pytest.raises(InputError, match=r"test_batch\.bin: has 3,072 bytes; .* 3,073"):
        load("cifar10", tmp_path)
    (folder / "test_batch.bin").write_bytes(record([10], 1, 2, 3))
    with pytest.raises(InputError, match=r"test_batch\.bin: label 10; .* 0 to 9"):
        load("cifar10", tmp_path)


def test_cifar100_takes_the_fine_labels(tmp_path):
    (tmp_path / "train.bin").write_bytes(record([1, 3], 0, 0, 0))
    (tmp_path / "test.bin").write_bytes(record([0, 2], 0, 0, 0))
    (tmp_path / "fine_label_names.txt").write_text("a\nb\nc\nd\n")
    images = load("cifar100", tmp_path)
    assert images.labels.tolist() == [3, 2]
    (tmp_path / "fine_label_names.txt").unlink()
    with pytest.raises(InputError, match=r"no fine_label_names\.txt.*binary"):
        load("cifar100", tmp_path)
