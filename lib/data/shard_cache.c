#include "data/shard_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "data/fetch.h"

/* Files of the folder: DIGITS, a shard; DIGITS.want, locked by the process that fetches it and as long as the shard, so
 * that the bound counts it; .lock, locked while shards are removed. */
enum { DIGITS = 32, ATTEMPTS = 5 };
#define WANT ".want"

struct vfm_shard_cache {
	char *url, *dir, *command;
	int64_t max_bytes;
	struct vfm_fetch *fetch;
};

int vfm_shard_cache_open(struct vfm_shard_cache **out, const struct vfm_shard_cache_opts *o, struct vfm_err *err)
{
	struct vfm_shard_cache *c;
	struct vfm_fetch_opts f = {.timeout_s = 3600, .stall_s = 60, .wait_s = 1, .retries = 5};
	int rc;

	*out = NULL;
	if (!o->url)
		return o->dir || o->command || o->gib != 0
			? vfm_fail(err, VFM_EUSAGE, "--cache, --cache-gib, --fetch: --remote URL is missing")
			: 0;
	if (!o->dir || !(o->gib > 0))
		return vfm_fail(err, VFM_EUSAGE, "--remote: --cache DIR and --cache-gib N above 0 are missing");
	if (o->gib > 0x1p32)
		return vfm_fail(err, VFM_EUSAGE, "--cache-gib: expected at most 2^32");
	c = vfm_calloc(1, sizeof(*c));
	c->url = vfm_strdup(o->url);
	c->dir = vfm_strdup(o->dir);
	c->command = o->command ? vfm_strdup(o->command) : NULL;
	c->max_bytes = (int64_t)(o->gib * 0x1p30);
	f.dir = c->dir;
	f.command = c->command;
	rc = vfm_fetch_open(&c->fetch, &f, err);
	if (rc < 0) {
		vfm_shard_cache_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

void vfm_shard_cache_close(struct vfm_shard_cache *c)
{
	if (!c)
		return;
	vfm_fetch_close(c->fetch);
	free(c->url);
	free(c->dir);
	free(c->command);
	free(c);
}

bool vfm_shard_cache_names_set(const struct vfm_shard_cache *c)
{
	return strstr(c->url, "{set}");
}

/* Returns the URL of a shard; the caller frees it. */
static char *shard_url(const struct vfm_shard_cache *c, const char *set, const char *shard)
{
	const char *at = strstr(c->url, "{set}");
	size_t end = strlen(c->url);
	struct vfm_buf b = {0};

	while (end > 0 && c->url[end - 1] == '/')
		end--;
	if (at)
		vfm_buf_addf(&b, "%.*s%s%.*s/%s", (int)(at - c->url), c->url, set,
			(int)(end - (size_t)(at - c->url) - strlen("{set}")), at + strlen("{set}"), shard);
	else
		vfm_buf_addf(&b, "%.*s/%s", (int)end, c->url, shard);
	return b.data;
}

/* ---- removing ---- */

struct old_shard {
	char name[DIGITS + 1];
	struct timespec opened;
	int64_t bytes;
};

struct old_shards {
	struct old_shard *list;
	size_t n, cap;
	int64_t bytes; /* with those that are being fetched */
};

/* Returns whether no process fetches the shard any more, and then removes its file. */
static bool is_left_behind(int folder, const char *name)
{
	int fd = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	bool left = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;

	if (left)
		unlinkat(folder, name, 0);
	if (fd >= 0)
		close(fd);
	return left || fd < 0;
}

static void list_shard(struct old_shards *s, int folder, const char *name)
{
	size_t digits = strspn(name, "0123456789abcdef");
	struct stat st;

	if (digits != DIGITS || fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
		return;
	if (strcmp(name + digits, WANT) == 0) {
		if (!is_left_behind(folder, name))
			s->bytes += st.st_size;
	} else if (!name[digits]) {
		vfm_grow(&s->list, &s->cap, s->n + 1, sizeof(*s->list));
		s->list[s->n] = (struct old_shard){.opened = st.st_mtim, .bytes = st.st_size};
		memcpy(s->list[s->n++].name, name, sizeof(s->list->name));
		s->bytes += st.st_size;
	}
}

static int by_opening(const void *a, const void *b)
{
	const struct old_shard *x = a, *y = b;

	if (x->opened.tv_sec != y->opened.tv_sec)
		return x->opened.tv_sec < y->opened.tv_sec ? -1 : 1;
	return x->opened.tv_nsec < y->opened.tv_nsec ? -1 : x->opened.tv_nsec > y->opened.tv_nsec;
}

static int remove_oldest(struct vfm_shard_cache *c, DIR *d, int64_t bytes, struct vfm_err *err)
{
	struct old_shards s = {0};
	struct dirent *e;
	int rc = 0;

	while ((e = readdir(d)))
		list_shard(&s, dirfd(d), e->d_name);
	if (s.n)
		qsort(s.list, s.n, sizeof(*s.list), by_opening);
	for (size_t i = 0; i < s.n && s.bytes + bytes > c->max_bytes; i++)
		if (unlinkat(dirfd(d), s.list[i].name, 0) == 0)
			s.bytes -= s.list[i].bytes;
	if (s.bytes + bytes > c->max_bytes)
		rc = vfm_fail(err, VFM_EENV,
			"a shard of %" PRId64 " bytes does not fit into the cache '%s' of %" PRId64
			" bytes, where %" PRId64 " bytes are being fetched",
			bytes, c->dir, c->max_bytes, s.bytes);
	free(s.list);
	return rc;
}

/* Makes room for a shard, and lets the bound count it: its file `want` gets its length. */
static int reserve_room(struct vfm_shard_cache *c, int want, uint64_t bytes, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.lock", c->dir);
	int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), rc;
	DIR *d = opendir(c->dir);

	if (lock < 0 || flock(lock, LOCK_EX) != 0 || !d) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot use the cache '%s'", c->dir);
	} else {
		rc = remove_oldest(c, d, (int64_t)bytes, err);
		if (rc == 0 && ftruncate(want, (off_t)bytes) != 0)
			rc = vfm_fail_errno(err, VFM_EENV, "cannot use the cache '%s'", c->dir);
	}
	if (d)
		closedir(d);
	if (lock >= 0)
		close(lock);
	free(path);
	return rc;
}

/* ---- fetching ---- */

/* Sets *fd to a descriptor of the shard if it is there; else to -1. */
static int open_present(const char *path, const char *url, uint64_t bytes, int *fd, struct vfm_err *err)
{
	struct stat st = {0};

	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (*fd < 0)
		return errno == ENOENT ? 0 : vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
	if (fstat(*fd, &st) == 0 && (uint64_t)st.st_size == bytes) {
		futimens(*fd, NULL); /* the order in which shards are removed */
		return 0;
	}
	close(*fd);
	*fd = -1;
	unlink(path);
	return vfm_fail(err, VFM_EINPUT, "'%s' has %" PRId64 " bytes where the index says %" PRIu64, url,
		(int64_t)st.st_size, bytes);
}

/* Fetches the shard while this process holds its lock. */
static int fetch_shard(struct vfm_shard_cache *c, int want, const char *url, uint64_t bytes, struct vfm_err *err)
{
	struct vfm_fetched got;
	int rc;

	TRY(reserve_room(c, want, bytes, err));
	rc = vfm_fetch_url(c->fetch, url, &got, err);
	if (rc == 0) {
		free(got.path);
	} else if (rc == VFM_EINPUT) { /* a server that is away is no damaged sample */
		rc = VFM_EENV;
		if (err)
			err->code = rc;
	}
	return rc;
}

/* Fetches the shard, or waits until another process or thread has. */
static int fetch_once(struct vfm_shard_cache *c, const char *path, const char *url, uint64_t bytes, struct vfm_err *err)
{
	char *name = vfm_strfmt("%s" WANT, path);
	int want = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666), rc = 0;
	struct stat st;

	if (want < 0 || flock(want, LOCK_EX) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot use the cache '%s'", c->dir);
	else if (fstat(want, &st) == 0 && st.st_nlink > 0 && access(path, F_OK) != 0)
		rc = fetch_shard(c, want, url, bytes, err);
	/* else: the one that held the lock before has fetched it, or failed; the caller looks */
	if (want >= 0 && fstat(want, &st) == 0 && st.st_nlink > 0)
		unlink(name);
	if (want >= 0)
		close(want);
	free(name);
	return rc;
}

int vfm_shard_cache_get(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, struct vfm_err *err)
{
	char *url = shard_url(c, set, shard), hex[VFM_SHA256_HEX], *path;
	int fd = -1, rc = 0;

	vfm_sha256_of(url, strlen(url), hex);
	path = vfm_strfmt("%s/%.*s", c->dir, DIGITS, hex);
	for (int i = 0; i < ATTEMPTS && fd < 0 && rc == 0; i++) { /* a full cache may remove it before it is opened */
		rc = open_present(path, url, bytes, &fd, err);
		if (rc == 0 && fd < 0)
			rc = fetch_once(c, path, url, bytes, err);
	}
	if (rc == 0 && fd < 0)
		rc = open_present(path, url, bytes, &fd, err);
	if (rc == 0 && fd < 0)
		rc = vfm_fail(
			err, VFM_EENV, "the cache '%s' is too small: '%s' was removed before it was read", c->dir, url);
	free(path);
	free(url);
	return rc < 0 ? rc : fd;
}
