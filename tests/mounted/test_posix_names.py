"""Names, symlinks and paths: any byte, any length, any depth."""

from __future__ import annotations

import os
import random
import unicodedata

import pytest

from tests.kit.posix import Places, Row, Table, as_user, attempt, check, get, kind_of, libc, opened, put

table = Table()

# ---- names ---------------------------------------------------------------------------

NAMES = {
    "one_byte": b"a",
    "255_bytes": b"n" * 255,
    "256_bytes": b"n" * 256,
    "255_bytes_of_utf8": ("é" * 127 + "x").encode(),
    "spaces": b"  two  spaces  ",
    "newline": b"new\nline",
    "tab_and_escape": b"tab\t\x1b[31mred\x1b[0m",
    "every_low_byte": bytes(range(1, 47)),
    "every_high_byte": bytes(range(128, 256)),
    "not_utf8": b"caf\xe9",
    "cut_utf8": "ü".encode()[:1],
    "utf8_nfc": unicodedata.normalize("NFC", "Ångström").encode(),
    "utf8_nfd": unicodedata.normalize("NFD", "Ångström").encode(),
    "leading_dash": b"-rf",
    "backslash_and_quotes": b"\\'\"`$(x)",
    "three_dots": b"...",
    "hidden": b".hidden",
    "tilde": b"file~",
    "glob": b"*?[a]",
    "deleted_suffix": b"x (deleted)",
    "fuse_hidden": b".fuse_hidden0000000100000001",
    "percent": b"%2F%00",
    "colon": b"C:\\x:stream",
    "emoji": "🦊.txt".encode(),
}

for title, name in NAMES.items():

    def name_row(d: str, name: bytes = name) -> object:
        top = os.fsencode(d)
        path = top + b"/" + name
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        os.write(fd, name)
        os.close(fd)
        listed = os.listdir(top)
        os.rename(path, top + b"/" + name[::-1])
        os.rename(top + b"/" + name[::-1], path)
        os.mkdir(path + b".d"[: 255 - len(name)] if len(name) < 254 else top + b"/d")
        os.symlink(name, top + b"/link")
        with open(top + b"/link", "rb") as file:
            content = file.read()
        os.unlink(path)
        return listed, content, os.readlink(top + b"/link"), attempt(os.stat, path)

    table.add(f"name_{title}", name_row)


@table.row
def nfc_and_nfd_are_two_names(d: str) -> object:
    for form in ("NFC", "NFD"):
        put(d + "/" + unicodedata.normalize(form, "Ångström"), form.encode())
    return len(os.listdir(d)), get(d + "/" + unicodedata.normalize("NFC", "Ångström"))


@table.row
def upper_and_lower_case_are_two_names(d: str) -> object:
    put(d + "/a", b"1")
    put(d + "/A", b"2")
    return get(d + "/a"), get(d + "/A")


@table.row
def names_too_long_everywhere(d: str) -> object:
    long = d + "/" + "n" * 256
    put(d + "/f")
    return {
        "open": attempt(os.open, long, os.O_RDONLY),
        "create": attempt(os.open, long, os.O_CREAT | os.O_WRONLY),
        "mkdir": attempt(os.mkdir, long),
        "symlink": attempt(os.symlink, "x", long),
        "link": attempt(os.link, d + "/f", long),
        "rename": attempt(os.rename, d + "/f", long),
        "rename from": attempt(os.rename, long, d + "/f"),
        "unlink": attempt(os.unlink, long),
        "rmdir": attempt(os.rmdir, long),
        "stat": attempt(os.stat, long),
        "mkfifo": attempt(os.mkfifo, long),
        "readlink": attempt(os.readlink, long),
        "below": attempt(os.stat, long + "/x"),
    }


@table.row
def random_names(d: str) -> object:
    choose, top = random.Random(7), os.fsencode(d)
    names = {
        bytes(b for b in choose.randbytes(choose.randrange(1, 60)) if b not in (0, 47)) for _ in range(200)
    }
    names -= {b"", b".", b".."}
    for name in names:
        with open(top + b"/" + name, "wb") as file:
            file.write(name)
    same = set(os.listdir(top)) == names
    for name in names:
        with open(top + b"/" + name, "rb") as file:
            same &= file.read() == name
        os.unlink(top + b"/" + name)
    return same, os.listdir(top)


@table.row
def empty_path_and_nul(d: str) -> object:
    os.chdir(d)
    return attempt(os.stat, ""), attempt(os.open, "", os.O_RDONLY), attempt(os.mkdir, ""), os.listdir(".")


@table.row
def long_path_within_path_max(d: str) -> object:
    part = "p" * 200
    path = d
    while len(path) + 201 < 4000:
        path += "/" + part
    os.makedirs(path)
    put(path + "/f", b"deep")
    too_long = path + "/" + "x" * (4096 - len(path))
    result = get(path + "/f"), attempt(os.stat, too_long), attempt(put, too_long)
    os.unlink(path + "/f")
    while path != d:
        os.rmdir(path)
        path = os.path.dirname(path)
    return result


@table.slow_row
def tree_deeper_than_path_max(d: str) -> object:
    """60 levels of 200 bytes, 12,000 bytes of path: only reached by descriptors."""
    name, fds = "q" * 200, [os.open(d, os.O_RDONLY)]
    for _ in range(60):
        os.mkdir(name, dir_fd=fds[-1])
        fds.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fds[-1]))
    deep = fds[-1]
    fd = os.open("f", os.O_CREAT | os.O_RDWR, dir_fd=deep)
    os.write(fd, b"at the bottom")
    os.rename("f", "g", src_dir_fd=deep, dst_dir_fd=deep)
    os.link("g", "h", src_dir_fd=deep, dst_dir_fd=deep)
    os.symlink("g", "s", dir_fd=deep)
    os.mkfifo("p", dir_fd=deep)
    os.chmod("h", 0o600, dir_fd=deep)
    os.utime("h", (1, 2), dir_fd=deep)
    os.setxattr(fd, "user.deep", b"1")
    again = os.open("s", os.O_RDONLY, dir_fd=deep)
    st = os.stat("h", dir_fd=deep)
    seen = os.read(again, 99), sorted(os.listdir(deep)), st.st_nlink, oct(st.st_mode), st.st_mtime
    os.rename("g", "up", src_dir_fd=deep, dst_dir_fd=fds[0])
    for left in ("h", "s", "p"):
        os.unlink(left, dir_fd=deep)
    for parent in reversed(fds[:-1]):
        os.rmdir(name, dir_fd=parent)
    return seen, os.listdir(d), get(d + "/up")


@table.row
def working_directory_deeper_than_path_max(d: str) -> object:
    os.chdir(d)
    for _ in range(45):
        os.mkdir("w" * 100)
        os.chdir("w" * 100)
    put("f", b"x")
    seen = attempt(os.getcwd), get("f"), os.listdir(".")
    os.unlink("f")
    for _ in range(45):
        os.chdir("..")
        os.rmdir("w" * 100)
    return seen if isinstance(seen[0], str) and not seen[0].startswith("/") else ("a path", *seen[1:])


@table.row
def two_hundred_levels(d: str) -> object:
    path = d + "/x" * 200
    os.makedirs(path)
    put(path + "/f", b"x")
    os.rename(d + "/x/x/x", d + "/moved")
    return get(d + "/moved" + "/x" * 197 + "/f"), attempt(os.stat, path)


# ---- dots ------------------------------------------------------------------------------


@table.row
def dots_and_double_slashes(d: str) -> object:
    os.makedirs(d + "/a/b")
    put(d + "/f")
    return (
        os.stat(d + "/a/./b//..///../f").st_size,
        os.path.samefile(d + "/a/b/..", d + "/a"),
        attempt(os.stat, d + "/f/."),
        attempt(os.stat, d + "/f/.."),
        attempt(os.mkdir, d + "/a/."),
        attempt(os.rmdir, d + "/a/.."),
        attempt(os.unlink, d + "/a/."),
    )


# ---- symlinks ---------------------------------------------------------------------------


@table.row
def symlink_targets_come_back_byte_by_byte(d: str) -> object:
    targets = [b"x", b"/abs/olute", b"../up", b"a" * 4095, b"\xff\xfe\n", b"trailing/", b"a//b/./c"]
    for number, target in enumerate(targets):
        os.symlink(target, os.fsencode(f"{d}/{number}"))
    links = [os.fsencode(f"{d}/{number}") for number in range(len(targets))]
    return [os.readlink(p) for p in links] == targets, [os.lstat(p).st_size for p in links]


@table.row
def symlink_errors(d: str) -> object:
    put(d + "/f")
    os.symlink("nowhere", d + "/s")
    return (
        attempt(os.symlink, "x", d + "/f"),
        attempt(os.symlink, "x", d + "/s"),
        attempt(os.symlink, "", d + "/e"),
        attempt(os.symlink, "x" * 4096, d + "/long"),
        attempt(os.symlink, "x", d + "/no/s"),
        attempt(os.symlink, "x", d + "/f/s"),
        attempt(os.symlink, "x", d + "/slash/"),
        attempt(os.readlink, d + "/f"),
        attempt(os.readlink, d),
        attempt(os.readlink, d + "/none"),
    )


@table.row
def loops_of_symlinks(d: str) -> object:
    os.symlink("b", d + "/a")
    os.symlink("a", d + "/b")
    os.symlink("self", d + "/self")
    return [
        attempt(call, d + name) for name in ("/a", "/self", "/a/x") for call in (os.stat, os.listdir, get)
    ]


for length in (1, 20, 40, 41):

    def chain_row(d: str, length: int = length) -> object:
        put(d + "/0", b"end")
        for number in range(length):
            os.symlink(str(number), f"{d}/{number + 1}")
        return attempt(get, f"{d}/{length}")

    table.add(f"chain_of_{length}_symlinks", chain_row)


@table.row
def symlinks_to_directories_within_a_path(d: str) -> object:
    os.makedirs(d + "/real/sub")
    put(d + "/real/sub/f", b"x")
    os.symlink("real", d + "/link")
    os.symlink("../real/sub", d + "/real/again")
    put(d + "/link/sub/new", b"n")
    return (
        get(d + "/link/again/f"),
        sorted(os.listdir(d + "/link/sub/")),
        os.path.realpath(d + "/link/again")[len(d) :],
    )


@table.row
def absolute_symlink_out_of_the_tree(d: str) -> object:
    os.symlink("/etc/passwd", d + "/s")
    os.symlink("/dev/null", d + "/null")
    return len(get(d + "/s")) > 0, get(d + "/null"), kind_of(os.lstat(d + "/s").st_mode)


@table.row
def symlink_itself_is_moved_removed_and_stamped(d: str) -> object:
    put(d + "/f", b"x")
    os.symlink("f", d + "/s")
    os.utime(d + "/s", (5, 6), follow_symlinks=False)
    os.rename(d + "/s", d + "/t")
    st = os.lstat(d + "/t")
    os.unlink(d + "/t")
    return st.st_mtime, st.st_size, oct(st.st_mode), sorted(os.listdir(d))


@table.root_row
def owner_of_a_symlink(d: str) -> object:
    os.symlink("nowhere", d + "/s")
    os.lchown(d + "/s", 4001, 4002)
    return os.lstat(d + "/s").st_uid, os.lstat(d + "/s").st_gid, attempt(os.chown, d + "/s", 1, 1)


@table.row
def mode_of_a_symlink(d: str) -> object:
    put(d + "/f", b"x", 0o600)
    os.symlink("f", d + "/s")
    os.chmod(d + "/s", 0o640)
    flag = 0x100  # AT_SYMLINK_NOFOLLOW
    return (
        oct(os.stat(d + "/f").st_mode),
        oct(os.lstat(d + "/s").st_mode),
        attempt(lambda: check(libc.fchmodat(-100, os.fsencode(d + "/s"), 0o600, flag))),
    )


@table.row
def replacing_a_symlink_by_rename(d: str) -> object:
    put(d + "/a", b"A")
    put(d + "/b", b"B")
    os.symlink("a", d + "/current")
    seen = [get(d + "/current")]
    for target in ("b", "a", "b"):
        os.symlink(target, d + "/tmp")
        os.rename(d + "/tmp", d + "/current")
        seen.append(get(d + "/current"))
    return seen


@table.row
def symlink_replaced_by_a_file_and_back(d: str) -> object:
    put(d + "/t", b"target")
    seen = []
    for _ in range(5):
        os.symlink("t", d + "/x")
        seen.append((get(d + "/x"), kind_of(os.lstat(d + "/x").st_mode)))
        os.unlink(d + "/x")
        put(d + "/x", b"own")
        seen.append((get(d + "/x"), kind_of(os.lstat(d + "/x").st_mode)))
        os.unlink(d + "/x")
    return seen


@table.row
def file_replaced_by_a_directory_and_back(d: str) -> object:
    seen = []
    for _ in range(5):
        put(d + "/x", b"file")
        seen.append(attempt(os.listdir, d + "/x"))
        os.unlink(d + "/x")
        os.mkdir(d + "/x")
        put(d + "/x/y", b"below")
        seen.append(attempt(get, d + "/x"))
        seen.append(get(d + "/x/y"))
        os.unlink(d + "/x/y")
        os.rmdir(d + "/x")
    return seen


@table.row
def empty_readlink_needs_a_symlink(d: str) -> object:
    put(d + "/f")
    with opened(d + "/f", os.O_PATH) as fd:
        return attempt(os.readlink, "", dir_fd=fd)


@table.root_row
def search_permission_on_every_directory(d: str) -> object:
    os.makedirs(d + "/a/b/c")
    put(d + "/a/b/c/f", b"x", 0o666)
    seen = []
    for bits in (0o755, 0o711, 0o744, 0o700, 0o000, 0o755):
        os.chmod(d + "/a/b", bits)
        seen.append(
            (
                as_user(4005, lambda: get(d + "/a/b/c/f")),
                as_user(4005, lambda: os.listdir(d + "/a/b")),
                as_user(4005, lambda: os.stat(d + "/a/b/c").st_nlink),
            )
        )
    return seen


@pytest.mark.parametrize("row", table.rows, ids=lambda row: row.name)
def test_paths_as_on_a_plain_directory(row: Row, places: Places) -> None:
    places.compare(table, row)
