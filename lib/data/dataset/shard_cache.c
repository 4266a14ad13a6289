/* shard_cache.c - downloads shards on demand under a lock file, and removes the ones used longest ago. */
#include "data/dataset/shard_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/dataset/fetch.h"
#include "io/file.h"
#include "io/hash.h"

/* Files of the folder:
 *   DIGITS               a shard
 *   DIGITS.want          as long as the shard, so that it counts towards the bound; locked by the process that fetches
 *                        it
 *   DIGITS.BYTES.again   note that a shard of BYTES was downloaded again because of a fault.  Empty if the download had
 *                        the right length, else one byte longer than it.
 *   .lock                locked while shards are removed */
enum { DIGITS = 32, ATTEMPTS = 5 };
#define WANT  ".want"
#define AGAIN ".again"

/* The contents of a note (.again). */
struct shard_note {
	char *path;
	int64_t wrong_length; /* < 0: the length is right */
};

struct vfm_shard_cache {
	char *url, *dir, *command;
	int64_t max_bytes;
	struct vfm_fetch *fetch;
	pthread_mutex_t lock; /* guards notes */
	struct shard_note
		*notes; /* [n_notes] that this process has read or written: a run that begins removes the files */
	size_t n_notes, cap_notes;
};

static size_t count_digits(const char *name)
{
	return strspn(name, "0123456789abcdef");
}

static bool is_note(const char *name)
{
	size_t n = strlen(name);

	return n >= strlen(AGAIN) && strcmp(name + n - strlen(AGAIN), AGAIN) == 0 && count_digits(name) == DIGITS;
}

/* The faults of earlier runs: the server may have whole shards by now. */
static void forget_faults(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (is_note(e->d_name))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

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
	pthread_mutex_init(&c->lock, NULL);
	f.dir = c->dir;
	f.allow_empty = true; /* a wrong length like any other */
	f.command = c->command;
	f.any_length = !f.command; /* the index has the length */
	rc = vfm_fetch_open(&c->fetch, &f, err);
	if (rc < 0) {
		vfm_shard_cache_close(c);
		return rc;
	}
	forget_faults(c->dir);
	*out = c;
	return 0;
}

void vfm_shard_cache_close(struct vfm_shard_cache *c)
{
	if (!c)
		return;
	vfm_fetch_close(c->fetch);
	for (size_t i = 0; i < c->n_notes; i++)
		free(c->notes[i].path);
	free(c->notes);
	pthread_mutex_destroy(&c->lock);
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

/* Waits for the lock of a file; a signal does not end the wait. */
static int wait_for_lock(int fd)
{
	int rc;

	while ((rc = flock(fd, LOCK_EX)) != 0 && errno == EINTR)
		;
	return rc;
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
	size_t digits = count_digits(name);
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

/* Makes room for a shard, and lets the bound count it: its file `want` gets its length.  A killed process may have left
 * it with a length. */
static int reserve_room(struct vfm_shard_cache *c, int want, uint64_t bytes, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/.lock", c->dir);
	int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), rc;
	DIR *d = opendir(c->dir);

	if (lock < 0 || wait_for_lock(lock) != 0 || !d || ftruncate(want, 0) != 0) {
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

/* A shard of the cache, while a call works on it. */
struct wanted {
	char *url, *path, *want, *again;
	uint64_t bytes;
};

static void name_files(
	struct wanted *w, const struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes)
{
	char hex[VFM_SHA256_HEX];

	w->url = shard_url(c, set, shard);
	vfm_sha256_of(w->url, strlen(w->url), hex);
	w->path = vfm_strfmt("%s/%.*s", c->dir, DIGITS, hex);
	w->want = vfm_strfmt("%s" WANT, w->path);
	w->again = vfm_strfmt("%s.%" PRIu64 AGAIN, w->path, bytes);
	w->bytes = bytes;
}

static void free_names(struct wanted *w)
{
	free(w->url);
	free(w->path);
	free(w->want);
	free(w->again);
}

/* Sets *fd to a descriptor of the shard if the folder has it with its length; else to -1. */
static int open_present(const struct wanted *w, int *fd, struct vfm_err *err)
{
	struct stat st = {0};

	*fd = open(w->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (*fd < 0)
		return errno == ENOENT ? 0 : vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", w->path);
	if (fstat(*fd, &st) == 0 && (uint64_t)st.st_size == w->bytes) {
		futimens(*fd, NULL); /* the order of removal of shards */
		return 0;
	}
	close(*fd);
	*fd = -1;
	return 0;
}

/* Waits until this process alone may fetch the shard; *lock is closed by unlock_want. */
static int lock_want(const struct vfm_shard_cache *c, const struct wanted *w, int *lock, struct vfm_err *err)
{
	struct stat st;

	for (;;) {
		*lock = open(w->want, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (*lock < 0 || wait_for_lock(*lock) != 0 || fstat(*lock, &st) != 0)
			break;
		if (st.st_nlink > 0)
			return 0;
		close(*lock); /* the one that held the lock has removed its file */
	}
	vfm_fail_errno(err, VFM_EENV, "cannot use the cache '%s'", c->dir);
	if (*lock >= 0)
		close(*lock);
	return VFM_EENV;
}

static void unlock_want(const struct wanted *w, int lock)
{
	unlink(w->want);
	close(lock);
}

/* The caller holds the lock. */
static struct shard_note *find_note(const struct vfm_shard_cache *c, const char *path)
{
	for (size_t i = 0; i < c->n_notes; i++)
		if (strcmp(c->notes[i].path, path) == 0)
			return &c->notes[i];
	return NULL;
}

/* Sets what this process knows of a shard. */
static void remember(struct vfm_shard_cache *c, const struct wanted *w, int64_t wrong_length)
{
	struct shard_note *note;

	pthread_mutex_lock(&c->lock);
	note = find_note(c, w->again);
	if (!note) {
		vfm_grow(&c->notes, &c->cap_notes, c->n_notes + 1, sizeof(*c->notes));
		note = &c->notes[c->n_notes++];
		note->path = vfm_strdup(w->again);
	}
	note->wrong_length = wrong_length;
	pthread_mutex_unlock(&c->lock);
}

/* Returns whether the shard was downloaded again in this run, by any process, and sets the wrong length of that
 * download; < 0: it was right. */
static bool was_downloaded_again(struct vfm_shard_cache *c, const struct wanted *w, int64_t *wrong_length)
{
	const struct shard_note *note;
	struct stat st;

	pthread_mutex_lock(&c->lock);
	note = find_note(c, w->again);
	*wrong_length = note ? note->wrong_length : -1;
	pthread_mutex_unlock(&c->lock);
	if (note || stat(w->again, &st) != 0)
		return note;
	*wrong_length = (int64_t)st.st_size - 1;
	remember(c, w, *wrong_length);
	return true;
}

/* Notes for all processes, until the next run, that the shard was downloaded again.  wrong_length: the length of that
 * download; < 0: the right one. */
static int note_again(struct vfm_shard_cache *c, const struct wanted *w, int64_t wrong_length, struct vfm_err *err)
{
	int fd = open(w->again, O_WRONLY | O_CREAT | O_CLOEXEC, 0666), rc = 0;

	if (fd < 0 || ftruncate(fd, (off_t)wrong_length + 1) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->again);
	if (fd >= 0)
		close(fd);
	remember(c, w, wrong_length);
	return rc;
}

static int fail_length(const struct wanted *w, int64_t length, struct vfm_err *err)
{
	return vfm_fail(err, VFM_EINPUT, "'%s' has %" PRId64 " bytes where the index says %" PRIu64 " (tried twice)",
		w->url, length, w->bytes);
}

/* Downloads the shard in place of the existing file.  `again`: because of a fault.  A download of another length is a
 * fault, too, and is tried again, once in a run. */
static int download_shard(struct vfm_shard_cache *c, const struct wanted *w, int lock, bool again, struct vfm_err *err)
{
	struct vfm_fetched got;
	int64_t length;
	int rc;

	TRY(reserve_room(c, lock, w->bytes, err));
	for (again |= was_downloaded_again(c, w, &length);; again = true) {
		rc = vfm_fetch_url(c->fetch, w->url, &got, err);
		if (rc == VFM_EINPUT && err)
			err->code = VFM_EENV; /* a server that is away is no damaged sample */
		if (rc < 0)
			return rc == VFM_EINPUT ? VFM_EENV : rc;
		free(got.path);
		if ((uint64_t)got.bytes == w->bytes)
			return again ? note_again(c, w, -1, err) : 0;
		unlink(w->path);
		if (again)
			break;
	}
	TRY(note_again(c, w, got.bytes, err));
	return fail_length(w, got.bytes, err);
}

/* Fetches the shard, unless another process or thread has by the time that this one may. */
static int fetch_once(struct vfm_shard_cache *c, const struct wanted *w, struct vfm_err *err)
{
	struct stat st;
	int64_t length;
	int lock, rc = 0;

	TRY(lock_want(c, w, &lock, err));
	if (was_downloaded_again(c, w, &length) && length >= 0)
		rc = fail_length(w, length, err);
	else if (stat(w->path, &st) != 0 || (uint64_t)st.st_size != w->bytes)
		rc = download_shard(c, w, lock, false, err);
	unlock_want(w, lock);
	return rc;
}

int vfm_shard_cache_get(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, struct vfm_err *err)
{
	struct wanted w;
	int fd, rc;

	name_files(&w, c, set, shard, bytes);
	rc = open_present(&w, &fd, err);
	for (int i = 0; i < ATTEMPTS && fd < 0 && rc == 0; i++) { /* a full cache may remove it before it is opened */
		rc = fetch_once(c, &w, err);
		if (rc == 0)
			rc = open_present(&w, &fd, err);
	}
	if (rc == 0 && fd < 0)
		rc = vfm_fail(err, VFM_EENV, "the cache '%s' is too small: '%s' was removed before it was read", c->dir,
			w.url);
	free_names(&w);
	return rc < 0 ? rc : fd;
}

int vfm_shard_cache_renew(
	struct vfm_shard_cache *c, const char *set, const char *shard, uint64_t bytes, int fd, struct vfm_err *err)
{
	struct wanted w;
	struct stat st;
	int64_t length;
	int lock, rc;

	name_files(&w, c, set, shard, bytes);
	rc = lock_want(c, &w, &lock, err);
	if (rc == 0) {
		if (!vfm_is_same_file(fd, w.path)) {
			rc = fstat(fd, &st) == 0 && st.st_nlink == 0; /* else it is a file elsewhere */
		} else if (!was_downloaded_again(c, &w, &length)) {
			rc = download_shard(c, &w, lock, true, err);
			rc = rc < 0 ? rc : 1;
		}
		unlock_want(&w, lock);
	}
	free_names(&w);
	return rc;
}
