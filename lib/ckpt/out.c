/* out.c - writes a file in chunks on a thread of its own, and hashes each chunk. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/par.h"
#include "ckpt/ckpt_impl.h"

/* One chunk is filled, one waits in the queue of the thread, and one is being written. */
enum { CHUNKS = 3, QUEUE = 1 };

struct out_chunk {
	struct ckpt_out *o;
	uint8_t *data; /* [CKPT_CHUNK] */
	size_t len;
};

struct ckpt_out {
	const char *what;
	struct out_chunk chunk[CHUNKS];
	int at; /* the chunk that is filled */
	struct ckpt_out_sums sums;
	struct vfm_pool *pool; /* one thread */
	/* of the thread */
	int fd;
	uint64_t written;
	struct vfm_sha256 *all;
	struct vfm_err err;
	atomic_bool failed;
};

int ckpt_save_fail(const char *what, struct vfm_err *err)
{
	return vfm_fail_errno(err, VFM_EENV, "cannot save checkpoint '%s'", what);
}

static int write_all_bytes(const char *what, int fd, const void *data, size_t len, struct vfm_err *err)
{
	const char *p = data;

	while (len) {
		ssize_t k = write(fd, p, len);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return ckpt_save_fail(what, err);
		p += k;
		len -= (size_t)k;
	}
	return 0;
}

static int close_synced(const char *what, int fd, struct vfm_err *err)
{
	int bad = fsync(fd) != 0 ? errno : 0;

	if (close(fd) != 0 && !bad)
		bad = errno;
	if (!bad)
		return 0;
	errno = bad;
	return ckpt_save_fail(what, err);
}

struct ckpt_out *ckpt_out_open(const char *path, const char *what, struct vfm_err *err)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	struct ckpt_out *o;

	if (fd < 0) {
		ckpt_save_fail(what, err);
		return NULL;
	}
	o = vfm_calloc(1, sizeof(*o));
	o->what = what;
	o->fd = fd;
	for (int i = 0; i < CHUNKS; i++)
		o->chunk[i] = (struct out_chunk){.o = o, .data = vfm_malloc(CKPT_CHUNK)};
	o->sums.chunks = json_array();
	o->all = vfm_sha256_new();
	o->pool = vfm_pool_new(1, QUEUE);
	return o;
}

/* In the thread. */
static void write_chunk(void *arg)
{
	struct out_chunk *k = arg;
	struct ckpt_out *o = k->o;

	if (atomic_load(&o->failed))
		return;
	vfm_sha256_add(o->all, k->data, k->len);
	if (write_all_bytes(o->what, o->fd, k->data, k->len, &o->err) < 0) {
		atomic_store(&o->failed, true);
		return;
	}
	/* The disk begins now, not at the fsync.  Where this is not supported, nothing is lost. */
	sync_file_range(o->fd, (off_t)o->written, (off_t)k->len, SYNC_FILE_RANGE_WRITE);
	o->written += k->len;
}

/* Passes the chunk to the thread.  After push, at most this chunk and the one before are not yet written. */
static void flush_chunk(struct ckpt_out *o)
{
	struct out_chunk *k = &o->chunk[o->at];
	char hex[VFM_SHA256_HEX];

	if (!k->len)
		return;
	vfm_sha256_of(k->data, k->len, hex);
	json_array_append_new(o->sums.chunks, json_string(hex));
	o->sums.bytes += k->len;
	vfm_pool_push(o->pool, write_chunk, k);
	o->at = (o->at + 1) % CHUNKS;
	o->chunk[o->at].len = 0;
}

/* The thread's message; it has stopped writing when `failed` is set. */
static int thread_failed(const struct ckpt_out *o, struct vfm_err *err)
{
	return vfm_fail(err, o->err.code, "%s", o->err.msg);
}

int ckpt_out_add(struct ckpt_out *o, const void *data, size_t len, struct vfm_err *err)
{
	const uint8_t *p = data;

	while (len) {
		struct out_chunk *k = &o->chunk[o->at];
		size_t n = CKPT_CHUNK - k->len < len ? CKPT_CHUNK - k->len : len;

		if (atomic_load(&o->failed))
			return thread_failed(o, err);
		memcpy(k->data + k->len, p, n);
		k->len += n;
		p += n;
		len -= n;
		if (k->len == CKPT_CHUNK)
			flush_chunk(o);
	}
	return 0;
}

static void free_out(struct ckpt_out *o)
{
	for (int i = 0; i < CHUNKS; i++)
		free(o->chunk[i].data);
	free(o);
}

int ckpt_out_close(struct ckpt_out *o, struct ckpt_out_sums *sums, struct vfm_err *err)
{
	int rc = 0;

	flush_chunk(o);
	vfm_pool_free(o->pool);
	vfm_sha256_end(o->all, o->sums.sha256);
	if (atomic_load(&o->failed)) {
		rc = thread_failed(o, err);
		close(o->fd);
	} else {
		rc = close_synced(o->what, o->fd, err);
	}
	*sums = o->sums;
	if (rc < 0) {
		json_decref(sums->chunks);
		sums->chunks = NULL;
	}
	free_out(o);
	return rc;
}

void ckpt_out_abandon(struct ckpt_out *o)
{
	if (!o)
		return;
	vfm_pool_free(o->pool);
	vfm_sha256_end(o->all, o->sums.sha256);
	json_decref(o->sums.chunks);
	close(o->fd);
	free_out(o);
}
