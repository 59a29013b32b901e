/* The lane: answers by itself what needs no decision, in threads of its own, without the GIL.
 *
 *   /dev/fuse ──► serve.c ──┬─► answered here: names, attributes, listings, reading
 *                           └─► queue.c ──► Python (pyfuse3's loop takes it as if from /dev/fuse)
 *
 *   table.c    the node table, the only one: Python asks it through module.c
 *   reach.c    from a node to its inode on the backing filesystem
 *   listing.c  listings of directories
 *   making.c   what makes and removes names that only one task has to do with
 *   threads.c  which actor a thread belongs to, as Python has said
 *   queue.c    whole requests on their way to Python
 *   records.c  what Python has to know of afterwards: who has opened, made, removed what
 *   watch.c    what others change behind the mount
 *   state.c    all of that as bytes, for the program that comes after this one
 *   journal.c  requests under way, which must be done once although they come twice
 *   shared.c   the memory in which it lies, and which outlives this process
 *   takeover.c going on with what another process has left there
 *
 * One mount a process, hence one lane. `lane.lock` guards the table, the handles and the records; it
 * is never held while something may block: system calls on the backing directory happen without it,
 * and whoever holds it never asks for the GIL.
 */
#ifndef FSGUARD_LANE_H
#define FSGUARD_LANE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "wire.h"

enum { ROOT_ID = 1 };

/* ---- shared.c: with the lock held, but for the first and the last ----
 *
 * What begins with `live` lies in slots there. What the next process needs of it has been written
 * before `live` is; pointers, holds and whatever is only remembered, it makes anew. */

enum slot_kind {
    NODE_SLOT = 0x65646f6e, NAME_SLOT = 0x656d616e, HANDLE_SLOT = 0x646e6168, NOTED_SLOT = 0x65746f6e,
    GRANT_SLOT = 0x6e617267, WATCH_SLOT = 0x63746177, PATH_SLOT = 0x68746170,
};
enum { SLOT_CLASSES = 8, MAX_CHUNKS = 1 << 16 };

int shared_start(int fd); /* -1: this process's own memory, unless there is one; 0 or errno */
int shared_descriptor(void); /* -1: nobody else's */
void *slot_take(size_t size); /* zeros, not live; NULL: no memory */
void slot_live(void *slot, enum slot_kind kind);
void slot_free(void *slot);
size_t slot_room(const void *slot);
uint64_t slot_distance(const void *slot); /* 0: NULL */
void *slot_at(uint64_t distance, enum slot_kind kind);
bool slots_each(enum slot_kind kind, bool (*each)(void *with, void *slot), void *with);
/* Another process's memory takes the place of what there is; then one of the two that follow. 0 or errno. */
int shared_adopt(int fd);
void shared_decline(void);
void shared_accept(void);
bool shared_check(bool (*whole)(enum slot_kind kind, const void *slot, size_t size));
extern bool lane_forked; /* a child of who serves: the table is not its own */

struct name { /* one name of one node: (parent, text) */
    _Atomic uint32_t live;
    uint32_t hash;
    struct node *parent, *child;
    struct name *next;  /* of the same child */
    struct name *chain; /* in the hash */
    uint64_t parent_id, child_id;
    uint64_t number; /* the lower, the older */
    uint32_t length;
    char text[];
};

struct node { /* one inode behind the mount */
    _Atomic uint32_t live;
    uint32_t kind;        /* S_IFMT bits */
    uint64_t id, dev, ino;
    uint32_t holds;       /* handles, Python objects, requests and records that use it */
    uint32_t noted;       /* of these: records */
    uint64_t lookups;     /* as the kernel counts them */
    uint64_t children;    /* names in this directory */
    struct name *names;
    struct node *id_chain, *key_chain;
    bool keyed;           /* found by (dev, ino); no longer once the inode is gone */
    bool pinned;          /* `fd` is kept although (or because) no name leads here */
    int fd;               /* O_PATH: of a directory (cached) or of a pinned node; -1: none */
    int open_fd;          /* Python's, through which it is open; -1: it has none */
    uint32_t fd_users;    /* it is in use, without the lock, so many times */
    struct node *newer, *older; /* cached directories, by last use */
    uint64_t mutations;   /* changes of names in this directory that Python made */
    uint64_t removals;    /* tells a listing that it has aged */
    struct grant *grant;
    uint32_t look_actor;  /* who looked last, and the look's number */
    unsigned look_number;
    struct listing *listing; /* of a directory that is being read */
    struct watch *watch;  /* a directory's: how events name it */
    atomic_int watched;
    struct handle *making; /* through which it is being made, here */
    uint32_t own;          /* the group that has made it, here, and is alone with it; 0: nobody is */
    uint64_t own_epoch;
};

/* An actor as Python has numbered it, and its task. 0: not known. */
struct who {
    uint32_t actor, group;
};

/* Further writes by a thread through one of Python's handles need no decision. Taken back by whatever
 * else concerns the node: an open, a look, another's write, a request that goes to Python. */
struct grant {
    _Atomic uint32_t live;
    uint64_t node_id;
    uint64_t fh, epoch;
    int fd;
    uint32_t tid, under_way;
    bool append, over;
    int64_t until, last; /* CLOCK_MONOTONIC, ns; last: of the last write that went this way */
};

struct handle { /* open for reading, or a file that is made */
    _Atomic uint32_t live;
    uint64_t fh, node_id;
    struct node *node;
    struct handle *chain;
    uint64_t asked;       /* the request that it is the answer to, until that is written; 0: it is */
    int fd;
    atomic_bool has_read;
    unsigned look_number; /* of the look that the open was */
    struct who who;       /* whose it is */
    /* Of a file that is made here: */
    bool pythons;         /* Python goes on with it */
    uint32_t tid, flags;
    int64_t made_at;      /* CLOCK_REALTIME, ns */
};

struct noted { /* Python's handle: open through a descriptor that must not be lost */
    _Atomic uint32_t live;
    uint32_t tid, flags;
    int fd;
    uint64_t fh, node_id;
    struct node *node;
    struct noted *chain;
    uint64_t asked; /* see `handle`; stale once it was answered */
    bool readable;
};

/* The key is as fanotify's events have it (watch.c). */
struct watch {
    _Atomic uint32_t live;
    uint32_t hash;
    struct watch *chain;
    uint64_t id;
    uint32_t size;
    unsigned char key[];
};

struct path {
    _Atomic uint32_t live;
    uint32_t length;
    bool claimed; /* by a record, when another process looks */
    char text[];
};

enum { RECORDS = 8192, MAX_MISSES = 65536 };
enum record_kind { LOOKED, MADE, OPENED, REMOVED, LINKED };
struct record {
    enum record_kind kind;
    uint32_t actor;
    int64_t time; /* CLOCK_REALTIME, ns */
    struct node *node;
    struct path *path; /* as it was then; NULL: those that the node has now */
    uint64_t node_id, path_at; /* the same, for another process */
    uint64_t fh;
    bool wrote;
};

/* A request that may change something, from before it does until it was answered. */
struct started {
    _Atomic uint64_t unique; /* without the bit that says that it comes again; 0: none */
    uint32_t opcode;
    bool past;               /* another process has begun it */
    int64_t began;           /* CLOCK_REALTIME, ns */
    uint64_t ino, size;      /* of what it concerns, 0: nothing; how large the file was */
    uint64_t node;           /* of which Python has to be told, 0: none */
};

enum { DEVICES = 256, STARTED = 256, WATCH_COUNTERS = 5, PIDS = 8, CHILDREN = 16 };
struct shared {
    char magic[8];
    uint32_t layout;
    _Atomic uint32_t chunks;
    uint64_t next_id, next_fh, next_name, own_epoch; /* moved before they are used: never used twice */
    /* Of the records, only moved with the lock held; head: the next to write, tail: the next to take, told: the
     * next that whoever goes on with this memory would take. */
    atomic_uint head, tail, told;
    int32_t watch_fd;
    int32_t pid, pids[PIDS]; /* who serves, and who has served before */
    atomic_ullong counts[64];   /* requests answered here, by opcode */
    atomic_ullong forwarded, watching[WATCH_COUNTERS];
    _Atomic uint32_t device_count;
    uint64_t devices[DEVICES];
    struct {
        int32_t pid;
        int64_t until; /* CLOCK_MONOTONIC, ns */
    } children[CHILDREN]; /* that had copies of our descriptors: see watch_hold */
    uint32_t next_child;
    struct started started[STARTED];
    struct record records[RECORDS];
    uint8_t class_of[MAX_CHUNKS];
};
extern struct shared *shared;

struct lane {
    pthread_mutex_t lock;
    int device, root_fd;
    uint64_t root_dev;
    uint64_t entry_ns, attr_ns; /* for how long the kernel may believe */
    uint64_t watched_ns;        /* ... where changes from behind are heard of, if that is longer */
    uint32_t open_flags, opendir_flags;
    bool taking_over; /* what the dead had open is Python's to close: it knows by number what is left */
    bool resend;     /* what another process has read and not answered shall come again */
    bool no_opendir; /* the kernel can be told that directories need not be opened */
    size_t buffer_size;
    atomic_bool over;
    atomic_bool pausing;        /* the threads shall end, and leave everything as it is */
    atomic_bool unwatching;     /* those that watch shall, before */
    atomic_uint alive, watching; /* threads */
    int wake_fd;                /* readable while they shall */
    atomic_ullong names_epoch;  /* moves when a change of names, on disk and in the table, is complete */
    atomic_uint names_changing; /* so many are under way */
    atomic_bool making;         /* what is made here is nobody's business but its maker's */
};
extern struct lane lane;

static inline void lock(void) { pthread_mutex_lock(&lane.lock); }
static inline void unlock(void) { pthread_mutex_unlock(&lane.lock); }
int64_t monotonic_ns(void);

/* ---- table.c; the lock is held by the caller ---- */

bool table_start(const struct stat *root);
struct node *table_get(uint64_t id);
struct node *table_find(uint64_t dev, uint64_t ino);
/* For takeover.c: the table is empty, and gets these one by one. */
void table_clear(void);
bool table_link(struct node *node); /* false: there is one of that id */
bool name_link(struct name *name);  /* false: it leads from or to nothing that there is */
struct node *table_root(void);
uint64_t table_size(void);
void table_each(void (*each)(void *, struct node *), void *with);
uint64_t table_next_id(void);
/* Of a table that was written down (state.c): a node under its old id, the next one to give, the devices. */
struct node *table_restore(uint64_t id, const struct stat *st, bool keyed);
void table_restore_next(uint64_t id);
unsigned table_devices(const uint64_t **list);
struct name *name_find(struct node *parent, const char *text, size_t length);
/* NULL: out of memory. `fresh`: just created; a node of an id below `since` that is known by this inode
 * number belonged to a file that was deleted behind the mount. */
struct node *table_enter(struct node *parent, const char *text, size_t length, const struct stat *st,
                         bool fresh, uint64_t since);
bool name_add(struct node *node, struct node *parent, const char *text, size_t length);
void name_remove(struct node *node, struct node *parent, const char *text, size_t length);
void node_detach(struct node *node);
void node_forget(struct node *node, uint64_t count);
void node_settle(struct node *node);
static inline void node_hold(struct node *node) { node->holds++; }
static inline void node_release(struct node *node)
{
    node->holds--;
    node_settle(node);
}
/* The number of names; `each` gets every path that can be said. */
void node_paths(struct node *node, void (*each)(void *, const char *, size_t), void *with);
static inline bool node_is(const struct node *node, const struct stat *st)
{
    return node->ino == st->st_ino && node->dev == st->st_dev && node->kind == (st->st_mode & S_IFMT);
}
uint64_t shown_ino(uint64_t dev, uint64_t ino);
/* Names that still count although the inode has fewer: checked without the lock. */
void names_check(uint64_t id, uint64_t links, uint64_t keep_parent, const char *keep, size_t length);

/* ---- reach.c; without the lock; 0 or -errno, descriptors: -errno ---- */

int dir_acquire(struct node *node); /* the caller holds the node; give back with dir_release */
void dir_release(struct node *node);
int node_stat(struct node *node, struct stat *st);
int node_open(struct node *node, int flags); /* the caller's to close */
int node_pin(struct node *node);
void node_unpin(struct node *node);
void dir_forget(struct node *node); /* with the lock: close what is cached */

/* ---- listing.c ---- */

void listing_drop(struct node *node); /* with the lock */
/* Fill `out` with what comes after `offset`; the number of bytes or -errno. The node is held by the caller. */
ssize_t listing_read(struct node *node, uint64_t offset, bool plus, char *out, size_t size);
void listing_undo(const char *out, size_t size); /* the kernel did not get it */

/* ---- handles, in serve.c ---- */

#define LANE_FH (1ULL << 62) /* Python counts from 1 */
/* The lock is held by the caller; takes fd over and a hold of the node. NULL: out of memory. */
struct handle *handle_add(struct node *node, int fd, struct who who);
/* False: Python goes on with it, and closes it (and its descriptor) itself. */
bool handle_close(uint64_t fh, bool by_python);
struct handle *handle_get(uint64_t fh);
void handle_each(void (*each)(void *, const struct handle *), void *with);
uint64_t handle_count(void); /* without those that Python counts */
void handle_pythons(struct handle *handle);
void handle_link(struct handle *handle); /* for takeover.c: one that is there already */
void handle_answered(uint64_t fh);       /* the kernel has it */
struct handle *handle_find(uint64_t fh); /* with the lock */
struct handle *handle_asked(uint64_t unique); /* what the request has led to, unanswered; with the lock */
struct noted *noted_find(uint64_t fh); /* with the lock, like the next */
struct noted *noted_asked(uint64_t unique);
bool note_handle(const struct noted *what); /* with the lock */
void note_link(struct noted *noted);
void unnote_handle(uint64_t fh);
uint64_t handle_next(void);
void handle_restore_next(uint64_t fh);
void attr_fill(struct wire_attr *attr, const struct stat *st);
/* For how long (ns) the kernel may believe names in a directory, and attributes. With the lock. */
uint64_t entry_life(const struct node *parent);
uint64_t attr_life(const struct node *node, const struct stat *st);
void entry_fill(struct wire_entry *entry, const struct node *parent, const struct node *node, const struct stat *st);
void *serve(void *buffer); /* which it gives back at the end */
/* False: a thread is still at work after so long. What comes in meanwhile waits in the kernel. */
bool lane_pause(int64_t for_ns);
bool reply(const struct wire_in *in, const void *data, size_t size);
void reply_error(const struct wire_in *in, int error);
/* The size of the text at `body`, in `length`; false: it does not end. */
bool text_of(const char *body, size_t size, size_t *length);
/* The same of a name in a directory, which nothing else can be meant by. */
bool name_of(const char *body, size_t size, size_t *length);
enum { PASSED = O_APPEND | O_SYNC | O_DSYNC | O_NOATIME }; /* of open(2)'s flags; not O_DIRECT: it needs aligned buffers */
enum verdict { DONE, FORWARD };

/* ---- making.c ---- */

void making_start(void);
void making_thread(void);
enum verdict do_create(struct wire_in *in, struct node *parent, char *body, size_t size);
enum verdict do_mkdir(struct wire_in *in, struct node *parent, char *body, size_t size);
enum verdict do_unlink(struct wire_in *in, struct node *parent, char *body, size_t size);
enum verdict do_rmdir(struct wire_in *in, struct node *parent, char *body, size_t size);
enum verdict do_link(struct wire_in *in, struct node *parent, char *body, size_t size);
/* With the lock held: the handle is released, or Python goes on with it. */
void making_done(struct handle *handle);
void making_handed_over(struct node *node);
/* From now on Python decides whether anything is made here; what is being made is its own. */
void making_hold(void);
void names_change_begins(void);
void names_change_ends(void);

/* With the lock, which may be given up for a moment: a write may be under way. */
void grant_revoke(struct node *node);
extern uint64_t grant_epoch; /* grants of an earlier one do not count */
/* The node's grant, made if need be; NULL: no memory. */
struct grant *grant_of(struct node *node);
void grant_set(struct grant *grant, uint64_t fh, int fd, uint32_t tid, bool append, int64_t for_ns);

/* ---- journal.c ---- */

/* Before this thread changes anything for a request; what another process has begun: that, else NULL. `ino`:
 * of what it concerns, or 0; `size`: of a file that is appended to; `node`: of what no record will tell. */
const struct started *journal_begin(uint64_t unique, uint32_t opcode, uint64_t ino, uint64_t size, uint64_t node);
void journal_end(void);    /* what this thread has begun last is answered */
void journal_leave(void);  /* the thread ends */
const struct started *journal_past(uint64_t unique); /* NULL: not begun by a process before */
uint64_t journal_current(void);                      /* what this thread has begun and not ended; 0: nothing */
void journal_all_past(void);
/* Whether what is there under the name is what another process has made for this request. */
bool journal_made(uint64_t unique, int dir, const char *name, uint32_t kind);
int64_t realtime_ns(void);
/* For tests: SIGKILL at the nth time that this process comes by. */
enum die_point { BEGUN = 1, DONE_ON_DISK, IN_THE_TABLE, ANSWERED };
extern unsigned die_point;
void die_at(unsigned point, int nth);
void die_here(void);
static inline void die(enum die_point at)
{
    if (__builtin_expect(die_point == at, 0))
        die_here();
}

/* ---- threads.c ---- */

bool thread_know(uint32_t tid, struct who who, int64_t for_ns);
struct who thread_who(uint32_t tid); /* actor 0: not known (any more) */
void threads_forget(bool expired_only);
bool thread_reads_link(uint32_t tid); /* it sits in a readlink(2) */

/* ---- queue.c ---- */

struct buf { /* struct fuse_buf of libfuse, leading members */
    size_t size;
    int flags;
    void *mem;
};
bool queue_start(void);
int queue_eventfd(void);
void queue_wake(void); /* Python shall look what there is, without a request */
void *buffer_take(void);
void buffer_give(void *mem);
void queue_push(void *mem, size_t size); /* takes the buffer over */
void queue_end(void);
unsigned queue_length(void);
bool queue_wait(void); /* for a few microseconds, until there is something to receive */
int queue_receive(struct buf *buf); /* for fuse_session_receive_buf */

/* ---- records.c; the lock is held by the caller ---- */

/* Room for one record, which comes (record_push) or does not (record_cancel). */
bool record_reserve(void);
void record_cancel(void);
void record_push(struct record record);
/* The path of a name as it is now. False: it has none, or there is no memory. */
bool record_path(struct record *record, struct node *parent, const char *text, size_t length);
/* False: no room, Python has to take the request. */
bool look_add(struct node *node, struct who who);
/* The node stays held, and the path there, until records_told. */
bool record_take(struct record *record, unsigned *number);
void records_told(void); /* what was taken need not be taken again by anybody */
bool record_is_pending(unsigned number);
unsigned records_pending(void);
unsigned news_pending(void); /* records, and changes from behind */
void records_link(void); /* for takeover.c */
/* Names whose absence somebody may look at. Until they are known, it is all. */
void misses_known(bool known);
void miss_watch(uint64_t parent, const char *text, size_t length);
bool miss_watched(uint64_t parent, const char *text, size_t length);
/* The set itself: their hashes, NULL if it holds everything; and one of them again (0: everything). */
const uint64_t *miss_hashes(size_t *room);
void miss_restore(uint64_t hash);

/* ---- module.c ---- */

/* What is gathered with the lock held becomes Python objects without it: making objects may run the
 * garbage collector, and with it whatever Python calls back here. Zeros to begin with; `mem` is the
 * caller's to free. */
struct gather {
    char *mem;
    size_t used, size;
    bool failed;
};
void gather(struct gather *g, const void *data, size_t size);

/* ---- watch.c ---- */

enum { UNWATCHED, WATCHED, REFUSED };
enum { WATCH_BUFFER = 65536 };
#define CHANGE_THERE (1ULL << 62)  /* created and deleted: it is there now */
#define CHANGE_AUTHOR (1ULL << 61) /* no change: the name of a file in /proc/PID, and what it said */
struct change { /* made by others, past the mount */
    struct change *next;
    uint64_t mask; /* FAN_* */
    int pid;       /* 0: not told */
    int64_t time;  /* CLOCK_REALTIME, ns: when it was heard of */
    bool has_first, has_second;
    uint32_t first, second; /* bytes of text: the path, and where FAN_RENAME has led */
    char text[];
};
int watch_start(void);   /* 0 or errno: nothing can be watched */
bool watch_serve(void);
void watch_end(void);
void watch_hold(void); /* nothing is read; then: a child (0: none) was started meanwhile */
void watch_let_go(int child);
void watch_before(int pid); /* before it is read from: a process whose changes count as ours */
/* What was written down: the descriptor of the marks (-1: none), an event's name of a directory, counters. */
int watch_descriptor(void);
bool watch_adopt(int fd);
void watch_link(struct watch *watch, struct node *node); /* for takeover.c; node NULL: nobody's any more */
void watch_lost(void); /* changes were heard of by who is dead, and told to nobody */
const unsigned char *watch_key(const struct node *node, uint32_t *size);
bool watch_restore(struct node *node, const unsigned char *key, uint32_t size);
/* What the kernel has not been told, or not for the last time. */
void tells_each(void (*each)(void *, uint32_t what, uint64_t parent, uint64_t child, const char *name, size_t length),
                void *with);
void tell_restore(uint32_t what, uint64_t parent, uint64_t child, const char *name, size_t length);
void watch_counters(uint64_t counters[WATCH_COUNTERS], bool restore);
/* Without the lock, the node held by the caller; whether changes in the directory are heard of from now on. */
bool watch_dir(struct node *node, int fd);
bool watch_node(struct node *node);
bool watch_wanted(const struct node *node); /* a directory, not yet tried */
void watch_forget(struct node *node); /* with the lock */
void watch_expire(uint64_t parent, const char *name, size_t length);
bool watch_events(const char *buffer, size_t size); /* as read from fanotify; whether any are others' */
struct change *change_take(void);                   /* the caller's to free */
unsigned changes_pending(void);
struct watch_load {
    bool on;
    uint64_t directories, own, foreign, overflows, lost, refused;
    int error;
};
struct watch_load watch_load(void);

#endif
