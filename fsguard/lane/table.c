/* The node table: what the kernel knows, under which names, for how long.
 *
 * A node lives as long as the kernel has a lookup on it, somebody holds it, or a child of it lives
 * (so a living node always has its whole path). Ids are never used twice.
 */
#include "lane.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static struct node **by_id, **by_key;
static struct name **by_name;
static uint64_t nodes, keyed, names;
static uint64_t id_buckets, key_buckets, name_buckets; /* powers of two */
static uint64_t seed;
static struct node *root;

static uint64_t mix(uint64_t x)
{
    x ^= seed;
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27, x *= 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

static uint32_t name_hash(const struct node *parent, const char *text, size_t length)
{
    uint64_t h = mix(parent->id);
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    return (uint32_t)(mix(h) >> 16);
}

static uint64_t key_hash(uint64_t dev, uint64_t ino) { return mix(ino * 0x9e3779b97f4a7c15ULL + dev); }

/* Twice as many buckets when they are full. A table that can't grow only gets slower. */
static void grow_ids(void)
{
    uint64_t size = id_buckets * 2;
    struct node **wider = calloc(size, sizeof *wider);
    if (wider == NULL)
        return;
    for (uint64_t i = 0; i < id_buckets; i++)
        for (struct node *n = by_id[i], *next; n; n = next) {
            next = n->id_chain;
            n->id_chain = wider[n->id & (size - 1)];
            wider[n->id & (size - 1)] = n;
        }
    free(by_id);
    by_id = wider, id_buckets = size;
}

static void grow_keys(void)
{
    uint64_t size = key_buckets * 2;
    struct node **wider = calloc(size, sizeof *wider);
    if (wider == NULL)
        return;
    for (uint64_t i = 0; i < key_buckets; i++)
        for (struct node *n = by_key[i], *next; n; n = next) {
            next = n->key_chain;
            uint64_t at = key_hash(n->dev, n->ino) & (size - 1);
            n->key_chain = wider[at];
            wider[at] = n;
        }
    free(by_key);
    by_key = wider, key_buckets = size;
}

static void grow_names(void)
{
    uint64_t size = name_buckets * 2;
    struct name **wider = calloc(size, sizeof *wider);
    if (wider == NULL)
        return;
    for (uint64_t i = 0; i < name_buckets; i++)
        for (struct name *n = by_name[i], *next; n; n = next) {
            next = n->chain;
            n->chain = wider[n->hash & (size - 1)];
            wider[n->hash & (size - 1)] = n;
        }
    free(by_name);
    by_name = wider, name_buckets = size;
}

static void unkey(struct node *node)
{
    if (!node->keyed)
        return;
    struct node **at = &by_key[key_hash(node->dev, node->ino) & (key_buckets - 1)];
    while (*at != node)
        at = &(*at)->key_chain;
    *at = node->key_chain;
    node->keyed = false;
    keyed--;
}

static void link_id(struct node *n)
{
    if (nodes >= id_buckets)
        grow_ids();
    struct node **bucket = &by_id[n->id & (id_buckets - 1)];
    n->id_chain = *bucket, *bucket = n;
    nodes++;
}

static void link_key(struct node *n)
{
    if (keyed >= key_buckets)
        grow_keys();
    struct node **bucket = &by_key[key_hash(n->dev, n->ino) & (key_buckets - 1)];
    n->key_chain = *bucket, *bucket = n;
    keyed++;
}

static struct node *make(const struct stat *st)
{
    struct node *n = slot_take(sizeof *n);
    if (n == NULL)
        return NULL;
    n->id = shared->next_id++;
    n->dev = st->st_dev, n->ino = st->st_ino, n->kind = st->st_mode & S_IFMT;
    n->fd = n->open_fd = -1;
    n->keyed = true;
    link_id(n);
    link_key(n);
    slot_live(n, NODE_SLOT);
    return n;
}

bool table_start(const struct stat *st)
{
    id_buckets = key_buckets = name_buckets = 1024;
    by_id = calloc(id_buckets, sizeof *by_id);
    by_key = calloc(key_buckets, sizeof *by_key);
    by_name = calloc(name_buckets, sizeof *by_name);
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = (uint64_t)monotonic_ns();
    shared->devices[0] = st->st_dev, shared->device_count = 1;
    if (!by_id || !by_key || !by_name)
        return false;
    root = make(st);
    return root != NULL;
}

struct node *table_root(void) { return root; }
uint64_t table_size(void) { return nodes; }
uint64_t table_next_id(void) { return shared->next_id; }

void table_clear(void)
{
    memset(by_id, 0, id_buckets * sizeof *by_id);
    memset(by_key, 0, key_buckets * sizeof *by_key);
    memset(by_name, 0, name_buckets * sizeof *by_name);
    nodes = keyed = names = 0;
    root = NULL;
}

bool table_link(struct node *n)
{
    if (table_get(n->id))
        return false;
    struct node *older = n->keyed ? table_find(n->dev, n->ino) : NULL;
    if (older && older->id < n->id)
        unkey(older); /* its inode had gone, and the number was used again */
    else if (older)
        n->keyed = false;
    link_id(n);
    if (n->keyed)
        link_key(n);
    if (n->id == ROOT_ID)
        root = n;
    return true;
}

struct node *table_restore(uint64_t id, const struct stat *st, bool is_keyed)
{
    if (id == ROOT_ID)
        return root;
    shared->next_id = id;
    struct node *n = make(st);
    if (n && !is_keyed)
        unkey(n);
    return n;
}

void table_restore_next(uint64_t id) { shared->next_id = id; }

unsigned table_devices(const uint64_t **list)
{
    *list = shared->devices;
    return atomic_load(&shared->device_count);
}

void table_each(void (*each)(void *, struct node *), void *with)
{
    for (uint64_t i = 0; i < id_buckets; i++)
        for (struct node *n = by_id[i]; n; n = n->id_chain)
            each(with, n);
}

struct node *table_get(uint64_t id)
{
    struct node *n = by_id[id & (id_buckets - 1)];
    while (n && n->id != id)
        n = n->id_chain;
    return n;
}

struct node *table_find(uint64_t dev, uint64_t ino)
{
    struct node *n = by_key[key_hash(dev, ino) & (key_buckets - 1)];
    while (n && (n->ino != ino || n->dev != dev))
        n = n->key_chain;
    return n;
}

uint64_t shown_ino(uint64_t dev, uint64_t ino)
{
    unsigned i = 0, count = atomic_load(&shared->device_count);
    while (i < count && shared->devices[i] != dev)
        i++;
    if (i == count && count < DEVICES) {
        shared->devices[i] = dev;
        atomic_store(&shared->device_count, count + 1);
    }
    return ino ^ (uint64_t)i << 48;
}

/* ---- names ---- */

struct name *name_find(struct node *parent, const char *text, size_t length)
{
    uint32_t hash = name_hash(parent, text, length);
    struct name *n = by_name[hash & (name_buckets - 1)];
    while (n && (n->hash != hash || n->parent != parent || n->length != length || memcmp(n->text, text, length)))
        n = n->chain;
    return n;
}

/* Directories that may have lost what kept them; looked at when the change is complete. */
enum { DOUBTS = 64 };
static uint64_t doubtful[DOUBTS];
static unsigned doubts;

static void settle_doubtful(void)
{
    while (doubts) {
        struct node *node = table_get(doubtful[--doubts]);
        if (node)
            node_settle(node);
    }
}

static void name_drop(struct name *name)
{
    struct node *child = name->child, *parent = name->parent;
    struct name **at = &by_name[name->hash & (name_buckets - 1)];
    while (*at != name)
        at = &(*at)->chain;
    *at = name->chain;
    at = &child->names;
    while (*at != name)
        at = &(*at)->next;
    *at = name->next;
    parent->children--, parent->removals++;
    names--;
    slot_free(name);
    if (parent->children == 0 && parent->lookups == 0 && parent->holds == 0 && doubts < DOUBTS)
        doubtful[doubts++] = parent->id;
}

void name_remove(struct node *node, struct node *parent, const char *text, size_t length)
{
    struct name *name = name_find(parent, text, length);
    if (name && name->child == node)
        name_drop(name);
    settle_doubtful();
}

static void link_name(struct name *name)
{
    if (names >= name_buckets)
        grow_names();
    name->hash = name_hash(name->parent, name->text, name->length);
    name->chain = by_name[name->hash & (name_buckets - 1)];
    by_name[name->hash & (name_buckets - 1)] = name;
    /* The oldest comes first: it is the one that a path is made of. */
    struct name **after = &name->child->names;
    while (*after && (*after)->number < name->number)
        after = &(*after)->next;
    name->next = *after, *after = name;
    name->parent->children++, names++;
}

bool name_link(struct name *name)
{
    struct node *parent = table_get(name->parent_id), *child = table_get(name->child_id);
    if (!parent || !child || parent->kind != S_IFDIR || child == root || child == parent)
        return false;
    struct name *there = name_find(parent, name->text, name->length);
    if (there == NULL && child->kind == S_IFDIR)
        there = child->names; /* a directory has one name */
    if (there && there->number > name->number)
        return false;
    if (there)
        name_drop(there);
    name->parent = parent, name->child = child;
    link_name(name);
    return true;
}

bool name_add(struct node *node, struct node *parent, const char *text, size_t length)
{
    struct name *there = name_find(parent, text, length);
    if (there && there->child == node)
        return true;
    struct name *name = slot_take(sizeof *name + length + 1);
    if (name == NULL)
        return false;
    if (there) {
        struct node *old = there->child;
        name_drop(there);
        node_settle(old);
    }
    name->parent = parent, name->child = node;
    name->parent_id = parent->id, name->child_id = node->id, name->number = shared->next_name++;
    name->length = (uint32_t)length;
    memcpy(name->text, text, length);
    link_name(name);
    slot_live(name, NAME_SLOT);
    if (node->pinned && node->kind != S_IFDIR)
        node_unpin(node);
    return true;
}

static void drop_names(struct node *node)
{
    while (node->names)
        name_drop(node->names);
}

void node_detach(struct node *node)
{
    drop_names(node);
    unkey(node);
    node_hold(node);
    settle_doubtful();
    node->holds--;
}

void node_settle(struct node *node)
{
    while (node->lookups == 0 && node->holds == 0 && node->children == 0 && node->id != ROOT_ID) {
        struct node *above = node->names ? node->names->parent : NULL;
        /* Hard links elsewhere: their directories may have been waiting for this one, too. */
        while (node->names && node->names->next) {
            struct node *other = node->names->next->parent;
            name_drop(node->names->next);
            if (other != above)
                node_settle(other);
        }
        drop_names(node);
        unkey(node);
        struct node **at = &by_id[node->id & (id_buckets - 1)];
        while (*at != node)
            at = &(*at)->id_chain;
        *at = node->id_chain;
        nodes--;
        listing_drop(node);
        watch_forget(node);
        dir_forget(node);
        slot_free(node->grant);
        slot_free(node);
        if (above == NULL)
            return;
        node = above;
    }
}

void node_forget(struct node *node, uint64_t count)
{
    if (node->id == ROOT_ID)
        return;
    node->lookups -= count < node->lookups ? count : node->lookups;
    node_settle(node);
}

/* `parent` may be known as lying below `node`, which now turns up in it: it was moved behind the mount. */
static void break_cycle(struct node *node, struct node *parent)
{
    for (struct node *below = parent; below != node;) {
        if (below->names == NULL)
            return;
        struct node *above = below->names->parent;
        if (above == node) {
            name_drop(below->names);
            return;
        }
        below = above;
    }
}

struct node *table_enter(struct node *parent, const char *text, size_t length, const struct stat *st,
                         bool fresh, uint64_t since)
{
    struct name *name = name_find(parent, text, length);
    if (name && node_is(name->child, st) && (!fresh || name->child->id >= since))
        return name->child;
    struct node *node = table_find(st->st_dev, st->st_ino);
    if (node && (node->kind != (st->st_mode & S_IFMT) || (fresh && node->id < since))) {
        node_hold(node);
        node_hold(parent);
        node_detach(node);
        parent->holds--;
        node_release(node);
        node = NULL;
    }
    if (node == NULL) {
        node = make(st);
        if (node == NULL)
            return NULL;
    } else if (node->kind == S_IFDIR) {
        if (node == root)
            return NULL; /* a directory below itself: only a mount behind the mount can show that */
        /* A directory has one name: it was renamed behind the mount. */
        drop_names(node);
        break_cycle(node, parent);
    }
    node_hold(node);
    node_hold(parent);
    bool added = name_add(node, parent, text, length);
    settle_doubtful();
    parent->holds--;
    node->holds--;
    if (!added) {
        node_settle(node);
        return NULL;
    }
    return node;
}

/* ---- paths ---- */

void node_paths(struct node *node, void (*each)(void *, const char *, size_t), void *with)
{
    if (node == root) {
        each(with, "", 0);
        return;
    }
    for (struct name *name = node->names; name; name = name->next) {
        size_t size = name->length;
        struct node *above = name->parent;
        while (above != root && above->names) {
            size += above->names->length + 1;
            above = above->names->parent;
        }
        if (above != root)
            continue; /* in a directory that was removed */
        char small[4096], *path = size <= sizeof small ? small : malloc(size);
        if (path == NULL)
            continue;
        char *at = path + size - name->length;
        memcpy(at, name->text, name->length);
        for (above = name->parent; above != root; above = above->names->parent) {
            *--at = '/';
            at -= above->names->length;
            memcpy(at, above->names->text, above->names->length);
        }
        each(with, path, size);
        if (path != small)
            free(path);
    }
}
