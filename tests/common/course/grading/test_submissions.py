"""What is extracted from a submission, whatever its format."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from common.course.grading import submissions
from common.course.grading.attacking import attacks_in
from common.course.grading.submissions import NoSubmission, Submission, name_of, parsed, read_submission

TEXT = "// kernels\n"
NAME = "task2/attention_kernel.cu"


def in_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def zipped(folder: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "one.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return folder / "one.zip"


def tarred(folder: Path, files: dict[str, bytes], *more: tuple[str, bytes]) -> Path:
    """`more` may hold the same name again, as `tar --append` writes a newer file."""
    with tarfile.open(folder / "one.tar.gz", "w:gz") as archive:
        for name, data in (*files.items(), *more):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return folder / "one.tar.gz"


def committed(folder: Path, files: dict[str, bytes]) -> Path:
    work = in_folder(folder / "work", files)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        [*who, "commit", "-qm", "x"],
        ["bundle", "create", "../one.bundle", "HEAD"],
    ):
        subprocess.run(["git", *command], cwd=work, check=True, capture_output=True)
    return folder / "one.bundle"


@pytest.mark.parametrize("packed", [in_folder, zipped, tarred, committed])
@pytest.mark.parametrize("root", ["", "repo-main/"])
def test_only_the_files_that_tasks_name_are_taken(tmp_path: Path, packed, root: str) -> None:
    files = {
        root + NAME: TEXT.encode(),
        root + "common/__init__.py": b"raise",
        root + "difflib.py": b"",
        "build/x.so": b"",
    }
    found = parsed(str(packed(tmp_path, files)))
    assert found.files == {NAME: TEXT}
    assert found.problems["task1/attention.py"] == "The file is missing."


def test_a_folder_named_build_is_read_unless_it_is_a_checkouts(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, {f"build/{NAME}": TEXT.encode()})
    assert parsed(str(folder)).files == {NAME: TEXT}
    (folder / "common").mkdir()
    assert not parsed(str(folder)).files


def test_a_file_without_its_folder_counts_where_its_name_belongs_to_one_task(tmp_path: Path) -> None:
    found = parsed(str(in_folder(tmp_path, {"attention_kernel.cu": TEXT.encode(), "attention.py": b"x = 1\n"})))
    assert list(found.files) == [NAME]  # attention.py could belong to three tasks
    assert list(parsed(str(tmp_path), ["task3"]).files) == ["task3/attention.py"]


@pytest.mark.parametrize(
    "data, words",
    [
        ("größer\n".encode("latin-1"), "Line 1: byte 0xf6 is not UTF-8"),
        (b"a\0b", "zero bytes"),
        (b"x" * (submissions.MOST_BYTES + 1), "more than 1,048,576 bytes"),
    ],
)
@pytest.mark.parametrize("packed", [in_folder, zipped, tarred])
def test_a_file_that_is_no_text_is_not_taken(tmp_path: Path, packed, data: bytes, words: str) -> None:
    found = parsed(str(packed(tmp_path, {NAME: data})))
    assert words in found.problems[NAME] and not found.files


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert parsed(str(in_folder(tmp_path, {NAME: b"\xef\xbb\xbf" + TEXT.encode()}))).files == {NAME: TEXT}


def test_links_and_pipes_are_not_taken(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("salt")
    folder = tmp_path / "one" / "task2"
    folder.mkdir(parents=True)
    os.symlink(secret, folder / "attention_kernel.cu")
    assert "link" in parsed(str(tmp_path / "one")).problems[NAME]
    (folder / "attention_kernel.cu").unlink()
    os.mkfifo(folder / "attention_kernel.cu")
    assert "no regular file" in parsed(str(tmp_path / "one")).problems[NAME]
    (folder / "attention_kernel.cu").unlink()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "attention_kernel.cu").write_text("x")
    os.symlink(tmp_path / "elsewhere", folder)
    assert NAME not in parsed(str(tmp_path / "one")).files


def test_a_link_in_an_archive_is_not_taken(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "one.tar", "w") as archive:
        info = tarfile.TarInfo(NAME)
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    assert "link" in parsed(str(tmp_path / "one.tar")).problems[NAME]
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        info = zipfile.ZipInfo(NAME)
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    assert "link" in parsed(str(tmp_path / "one.zip")).problems[NAME]


def test_what_is_too_large_or_no_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MOST_ENTRIES", 3)
    with pytest.raises(NoSubmission, match="more than 3 files of the names"):
        parsed(str(zipped(tmp_path, {f"{i}/{NAME}": b"" for i in range(5)})))
    assert parsed(str(zipped(tmp_path, {f"{i}.txt": b"" for i in range(5)}))).files == {}
    monkeypatch.setattr(submissions, "MOST_UNPACKED", 1000)
    with pytest.raises(NoSubmission, match="unpacked it has more than 1,000 bytes"):
        parsed(str(tarred(tmp_path, {"video": bytes(2000)})))
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NoSubmission, match="neither a folder nor"):
        parsed(str(tmp_path / "notes.txt"))
    with pytest.raises(NoSubmission, match="no such file"):
        parsed(str(tmp_path / "nothing"))
    (tmp_path / "broken.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    assert not parsed(str(tmp_path / "broken.zip")).files


def test_a_tree_without_end_is_not_listed_to_its_end(tmp_path: Path) -> None:
    (bomb,) = [one for _, one in attacks_in("hostile") if one.name == "a git tree of 10,000,000,000 files"]
    with pytest.raises(NoSubmission, match="more than 50,000 files of the names"):
        read_submission(str(bomb.write(tmp_path / "in")), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_it_is_read_in_a_process_that_has_limits(tmp_path: Path) -> None:
    assert read_submission(str(in_folder(tmp_path / "one", {NAME: b"dlopen(0);\n"}))) == Submission(
        "one",
        {NAME: "dlopen(0);\n"},
        {name: "The file is missing." for name in submissions.wanted() if name != NAME},
    )
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(100):
            archive.writestr(f"{number}/{NAME}", bytes(submissions.MOST_BYTES))
    with pytest.raises(NoSubmission, match=r"^its files .* have more than 33,554,432 bytes$"):
        read_submission(str(tmp_path / "bomb.zip"))
    with pytest.raises(NoSubmission, match=r"^no such file or folder$"):
        read_submission(str(tmp_path / "nothing"))
    damaged = bytearray(zipped(tmp_path, {NAME: TEXT.encode() * 99}).read_bytes())
    damaged[80] ^= 1
    (tmp_path / "damaged.zip").write_bytes(damaged)
    with pytest.raises(NoSubmission, match=r"^the archive is damaged, pack it again: Bad CRC-32"):
        read_submission(str(tmp_path / "damaged.zip"))


def test_a_zip_with_backslashes_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        for name in ("hw\\task2\\", "hw\\task2\\attention_kernel.cu"):
            info = zipfile.ZipInfo(name)
            info.filename = name
            archive.writestr(info, TEXT)
    assert parsed(str(tmp_path / "one.zip")).files == {NAME: TEXT}


def test_of_two_copies_none_is_chosen_in_silence(tmp_path: Path) -> None:
    other = TEXT.encode() + b"// other\n"
    same = {f"a/{NAME}": TEXT.encode(), f"b/{NAME}": TEXT.encode()}
    assert (found := parsed(str(in_folder(tmp_path / "same", same)))).files == {NAME: TEXT} and not found.notes
    found = parsed(str(in_folder(tmp_path / "equal", same | {f"b/{NAME}": other})))
    assert found.problems[NAME] == f"There are different copies, a/{NAME} and b/{NAME}: hand in one."
    found = parsed(str(in_folder(tmp_path / "bare", {"a/attention_kernel.cu": b"a", "b/attention_kernel.cu": b"b"})))
    assert "different copies" in found.problems[NAME]
    found = parsed(str(in_folder(tmp_path / "below", {NAME: TEXT.encode(), f"old/{NAME}": other})))
    assert found.files == {NAME: TEXT} and found.notes == [f"{NAME} was graded, and not the other copy, old/{NAME}."]
    found = parsed(str(in_folder(tmp_path / "apart", {NAME: TEXT.encode(), "b/task1/attention.py": b"x = 1\n"})))
    assert set(found.files) == {NAME, "task1/attention.py"}
    found = parsed(str(tarred(tmp_path, {NAME: other}, (NAME, TEXT.encode()))))
    assert found.files == {NAME: TEXT} and "more than once; the last one" in found.notes[0]


def test_a_repository_whose_objects_are_elsewhere_is_refused(tmp_path: Path) -> None:
    bundle = committed(tmp_path, {NAME: TEXT.encode()})
    subprocess.run(["git", "clone", "-q", "--bare", bundle, tmp_path / "bare.git"], check=True)
    assert parsed(str(tmp_path / "bare.git")).files == {NAME: TEXT}
    subprocess.run(["git", "clone", "-q", "--bare", "--shared", tmp_path / "work", tmp_path / "b.git"], check=True)
    with pytest.raises(NoSubmission, match="outside of it, by objects/info/alternates"):
        parsed(str(tmp_path / "b.git"))


@pytest.mark.parametrize(("given", "right"), [(["main"], True), (["main", "work"], False), (["HEAD", "work"], True)])
def test_a_bundle_without_head_has_one_branch(tmp_path: Path, given: list[str], right: bool) -> None:
    committed(tmp_path, {NAME: TEXT.encode()})
    git = ["git", "-C", str(tmp_path / "work")]
    for command in (["branch", "-M", "main"], ["branch", "work"], ["bundle", "create", "../two.bundle", *given]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    if right:
        assert parsed(str(tmp_path / "two.bundle")).files == {NAME: TEXT}
        return
    with pytest.raises(NoSubmission, match="2 branches and doesn't say which one counts"):
        parsed(str(tmp_path / "two.bundle"))


@pytest.mark.parametrize(
    "path", ["Task2/Attention_kernel.cu", "task2/attention_kernel (1).cu", "attention_kernel-1.cu"]
)
def test_a_name_that_is_almost_right_is_named(tmp_path: Path, path: str) -> None:
    problem = parsed(str(in_folder(tmp_path, {path: TEXT.encode()}))).problems[NAME]
    assert problem == f"The file is missing. {path} is not graded: its path must be {NAME}."


def test_what_is_no_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "work" / "task2").mkdir(parents=True)
    os.mkfifo(tmp_path / "work" / NAME)
    with tarfile.open(tmp_path / "one.tar", "w") as archive:
        archive.add(tmp_path / "work", "")
    for source in ("work", "one.tar"):
        assert "no regular file" in parsed(str(tmp_path / source)).problems[NAME]


def test_a_zip_that_cannot_be_read_is_told_why(tmp_path: Path) -> None:
    whole = zipped(tmp_path, {f"\xff/{NAME}": TEXT.encode()}).read_bytes()
    for at, value, words in (
        (6, 8 | 1, "the zip is encrypted"),
        (8, 9, f"{NAME} is compressed in an unusual way: zip it with the method Deflate"),
        (30, 0xFF, f"the name .*/{NAME} in the archive is not UTF-8: rename it"),
    ):
        data = bytearray(whole)
        data[at] = data[data.index(b"PK\1\2") + at + (16 if at == 30 else 2)] = value
        (tmp_path / "one.zip").write_bytes(data)
        with pytest.raises(NoSubmission, match=words):
            parsed(str(tmp_path / "one.zip"))


@pytest.mark.parametrize("packed", [in_folder, tarred, committed])
def test_a_name_of_other_bytes_is_shown_without_them(tmp_path: Path, packed) -> None:
    name = "\udcff\n\x1b[2K/attention_kernel.cu"
    problem = parsed(str(packed(tmp_path, {name: b"", "a/attention_kernel.cu": b"a"}))).problems[NAME]
    assert "[2K/attention_kernel.cu" in problem and problem.isprintable()


def test_a_name_of_many_marks_is_read_at_once() -> None:
    begun = time.process_time()
    for end in ("", ".", ".cu", "copy.cu", "1234.cu"):
        assert submissions._plain("_" * 99 + end) != "attention_kernel.cu"
        submissions._plain("_" * 99 + end)
    assert time.process_time() - begun < 0.1
    assert submissions._plain("a/Attention_Kernel - Copy (12).CU") == "attention_kernel.cu"


def test_an_archive_in_an_archive_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    inner = zipped(tmp_path / "in", {NAME: TEXT.encode()}).read_bytes()
    with pytest.raises(NoSubmission, match=r"only another archive: hand in what is in x/inner.zip$"):
        parsed(str(zipped(tmp_path, {"x/inner.zip": inner})))
    assert parsed(str(zipped(tmp_path, {"x/inner.zip": inner, NAME: TEXT.encode()}))).files == {NAME: TEXT}


def test_a_folder_in_capitals_counts_if_no_other_has_its_name(tmp_path: Path) -> None:
    files = {NAME.replace("task2", "Task2"): TEXT.encode()}
    assert parsed(str(zipped(tmp_path, files))).files == {NAME: TEXT}
    assert parsed(str(zipped(tmp_path, {**files, NAME: b"other"}))).files == {NAME: "other"}
    assert parsed(str(zipped(tmp_path, {**files, NAME.replace("task2", "TASK2"): b"other"}))).files == {}


def test_the_handout_does_not_outweigh_what_was_written(tmp_path: Path) -> None:
    handed = {f"all/{name}": text.encode() for name, text in submissions.given().items()}
    assert parsed(str(zipped(tmp_path, {**handed, f"a/{NAME}": TEXT.encode()}))).files[NAME] == TEXT


def test_a_hard_link_is_the_file_it_names_and_a_zip_may_end_a_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "one.tar", "w") as archive:
        (tmp_path / "attention_kernel.cu").write_text(TEXT)
        archive.add(tmp_path / "attention_kernel.cu", "PK")  # a zip begins with these letters
        archive.add(tmp_path / "attention_kernel.cu", "./attention_kernel.cu")
        info = tarfile.TarInfo(NAME)
        info.type, info.linkname = tarfile.LNKTYPE, "attention_kernel.cu"
        archive.addfile(info)
        archive.add(zipped(tmp_path, {}), "notes.zip")
    assert parsed(str(tmp_path / "one.tar")).files == {NAME: TEXT}


def test_names_are_safe_for_folders() -> None:
    assert name_of("Jose\u0301.zip") == "Jos\xe9"
    assert [name_of(one) for one in ("a/b.tar.gz", "/x/../..", "https://h/x y.git/", "-", ".hidden")] == [
        "b", "submission", "x_y", "-", "hidden"
    ]  # fmt: skip
