/* The FUSE protocol as far as the lane speaks it: include/uapi/linux/fuse.h, 7.31 and later. */
#ifndef FSGUARD_WIRE_H
#define FSGUARD_WIRE_H

#include <stdint.h>

enum opcode {
    OP_LOOKUP = 1, OP_FORGET = 2, OP_GETATTR = 3, OP_SETATTR = 4, OP_READLINK = 5, OP_MKDIR = 9, OP_UNLINK = 10,
    OP_RMDIR = 11, OP_LINK = 13, OP_OPEN = 14, OP_READ = 15, OP_CREATE = 35,
    OP_STATFS = 17, OP_RELEASE = 18, OP_FSYNC = 20, OP_SETXATTR = 21, OP_GETXATTR = 22, OP_LISTXATTR = 23, OP_REMOVEXATTR = 24, OP_FLUSH = 25,
    OP_OPENDIR = 27, OP_READDIR = 28, OP_RELEASEDIR = 29, OP_FSYNCDIR = 30, OP_ACCESS = 34,
    OP_WRITE = 16, OP_INTERRUPT = 36, OP_BATCH_FORGET = 42, OP_READDIRPLUS = 44,
    OP_IOCTL = 39, OP_POLL = 40, OP_COPY_FILE_RANGE = 47,
};

struct wire_in {
    uint32_t len, opcode;
    uint64_t unique, nodeid;
    uint32_t uid, gid, pid;
    uint16_t total_extlen, padding;
};
/* In `unique`: the request comes again, who has read it first has not answered. */
#define AGAIN (1ULL << 63)
enum { NOTIFY_RESEND = 7 /* Linux 6.9 */ };
struct wire_out {
    uint32_t len;
    int32_t error;
    uint64_t unique;
};
struct wire_attr {
    uint64_t ino, size, blocks, atime, mtime, ctime;
    uint32_t atimensec, mtimensec, ctimensec;
    uint32_t mode, nlink, uid, gid, rdev, blksize, flags;
};
struct wire_entry {
    uint64_t nodeid, generation, entry_valid, attr_valid;
    uint32_t entry_valid_nsec, attr_valid_nsec;
    struct wire_attr attr;
};
struct wire_attr_out {
    uint64_t attr_valid;
    uint32_t attr_valid_nsec, dummy;
    struct wire_attr attr;
};
struct wire_getattr {
    uint32_t flags, dummy;
    uint64_t fh;
};
enum { GETATTR_FH = 1 };
struct wire_setattr {
    uint32_t valid, padding;
    uint64_t fh, size, lock_owner, atime, mtime, ctime;
    uint32_t atimensec, mtimensec, ctimensec, mode, unused4, uid, gid, unused5;
};
enum { SET_MODE = 1, SET_UID = 2, SET_GID = 4, SET_SIZE = 8, SET_ATIME = 16, SET_MTIME = 32, SET_FH = 64,
       SET_ATIME_NOW = 128, SET_MTIME_NOW = 256, SET_CTIME = 1024, SET_KILL_SUIDGID = 2048 };
struct wire_open {
    uint32_t flags, open_flags;
};
struct wire_create {
    uint32_t flags, mode, umask, open_flags;
};
struct wire_mkdir {
    uint32_t mode, umask;
};
struct wire_link {
    uint64_t oldnodeid;
};
struct wire_open_out {
    uint64_t fh;
    uint32_t open_flags;
    int32_t backing_id;
};
enum { FOPEN_KEEP_CACHE = 2, FOPEN_CACHE_DIR = 8 };
struct wire_read {
    uint64_t fh, offset;
    uint32_t size, read_flags;
    uint64_t lock_owner;
    uint32_t flags, padding;
};
struct wire_write {
    uint64_t fh, offset;
    uint32_t size, write_flags;
    uint64_t lock_owner;
    uint32_t flags, padding;
};
enum { WRITE_CACHE = 1, WRITE_KILL_SUIDGID = 4 };
struct wire_write_out {
    uint32_t size, padding;
};
struct wire_release {
    uint64_t fh;
    uint32_t flags, release_flags;
    uint64_t lock_owner;
};
struct wire_fsync {
    uint64_t fh;
    uint32_t fsync_flags, padding;
};
struct wire_getxattr {
    uint32_t size, padding;
};
struct wire_setxattr { /* without FUSE_SETXATTR_EXT, which libfuse does not ask for */
    uint32_t size, flags;
};
struct wire_forget {
    uint64_t nlookup;
};
struct wire_batch_forget {
    uint32_t count, dummy;
};
struct wire_forget_one {
    uint64_t nodeid, nlookup;
};
struct wire_kstatfs {
    uint64_t blocks, bfree, bavail, files, ffree;
    uint32_t bsize, namelen, frsize, padding, spare[6];
};
struct wire_dirent {
    uint64_t ino, off;
    uint32_t namelen, type;
    char name[];
};

#endif
