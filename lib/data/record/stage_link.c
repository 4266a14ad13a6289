/* stage_link.c - publishes the progress of a stage in a mapped file, and follows the output of the stage before.
 *
 * Progress is published, atomically, after its bytes are in the file.  After kill -9 a stage truncates its file to the
 * published bytes and reads its inputs again from the start, but skips the work for those that are done.  If the
 * machine itself failed and the file lacks published bytes, the stage begins again.
 *
 * Workers: a semaphore of the run's -j tokens in the progress file.  A thread holds a token while it works on a record.
 * A full queue stops its writer, so the tokens go to the slowest stages.
 */
#include "data/record/stage_link.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/json.h"

#define MAGIC       "vfm-progress-2"
#define FLUSH_BYTES (64 << 10)

/* ---- the progress file ---- */

int vfm_progress_file_open(struct vfm_progress_file **out, const char *path, struct vfm_err *err)
{
	struct vfm_progress_file *b = MAP_FAILED;
	struct stat st;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), why, rc = 0;

	if (fd < 0 || fstat(fd, &st) != 0) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
		goto out;
	}
	if (st.st_size != 0 && st.st_size != (off_t)sizeof(*b)) {
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': expected the progress file of a run by this version", path);
		goto out;
	}
	why = posix_fallocate(fd, 0, (off_t)sizeof(*b));
	if (why) {
		errno = why;
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);
		if (st.st_size == 0 && ftruncate(fd, 0) != 0)
			unlink(path);
		goto out;
	}
	b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (b == MAP_FAILED) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot map '%s'", path);
		goto out;
	}
	if (!b->magic[0]) { /* new, or of a run that was killed here */
		b->bytes = sizeof(*b);
		memcpy(b->magic, MAGIC, sizeof(MAGIC));
	}
	if (memcmp(b->magic, MAGIC, sizeof(MAGIC)) != 0 || b->bytes != sizeof(*b)) {
		rc = vfm_fail(err, VFM_EUSAGE, "'%s': expected the progress file of a run by this version", path);
		vfm_progress_file_close(b);
	}
	*out = b;
out:
	if (fd >= 0)
		close(fd);
	return rc;
}

void vfm_progress_file_close(struct vfm_progress_file *b)
{
	if (b)
		munmap(b, sizeof(*b));
}

static uint32_t progress_crc(const struct vfm_stage_progress *c)
{
	return vfm_crc32c(1, c, offsetof(struct vfm_stage_progress, crc));
}

/* A stage may publish twice while this copies: then the copy has another crc, and is repeated. */
void vfm_progress_stage_read(const struct vfm_progress_stage *s, struct vfm_stage_progress *c)
{
	for (int i = 0; i < 100; i++) {
		*c = s->progress[atomic_load(&s->version) & 1];
		if (c->crc == progress_crc(c))
			return;
	}
	memset(c, 0, sizeof(*c));
}

static void publish_progress(struct vfm_progress_stage *s, struct vfm_stage_progress *c)
{
	uint32_t version = atomic_load(&s->version) + 1;

	c->crc = progress_crc(c);
	s->progress[version & 1] = *c;
	atomic_store(&s->version, version);
}

void vfm_progress_stage_reset(struct vfm_progress_stage *s)
{
	struct vfm_stage_progress none;

	memset(&none, 0, sizeof(none));
	atomic_store(&s->finished, false);
	atomic_store(&s->failed_records, 0);
	publish_progress(s, &none);
}

/* ---- the link of this process ---- */

static struct vfm_stage_link *current;

void vfm_stage_link_set(struct vfm_stage_link *k)
{
	current = k;
}

struct vfm_stage_link *vfm_stage_link(void)
{
	return current;
}

static struct vfm_progress_stage *own_stage(const struct vfm_stage_link *k)
{
	return &k->progress->stage[k->index];
}

static void wait_briefly(int *tries)
{
	long ms = *tries < 10 ? 1 : *tries < 50 ? 4 : 20;

	++*tries;
	nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

/* Reads what the stage before has published; waits for more, and ends with that stage or when the run stops. */
static ssize_t read_published(void *cookie, char *buf, size_t size)
{
	struct vfm_stage_link *k = cookie;
	const struct vfm_progress_stage *before = &k->progress->stage[k->index - 1];
	struct vfm_stage_progress c;
	int tries = 0;
	ssize_t n;

	for (;;) {
		bool finished = atomic_load(&before->finished);

		vfm_progress_stage_read(before, &c);
		if (atomic_load(&k->progress->stop))
			return 0;
		if (c.bytes > k->consumed)
			break;
		if (finished)
			return 0;
		wait_briefly(&tries);
	}
	if ((int64_t)size > c.bytes - k->consumed)
		size = (size_t)(c.bytes - k->consumed);
	n = pread(k->in_fd, buf, size, k->consumed);
	if (n == 0)
		errno = EIO; /* another program cut the file */
	if (n <= 0)
		return -1;
	k->consumed += n;
	return n;
}

/* Returns whether the file has the published bytes.  A failed machine may have lost some: they are missing or 0. */
static bool has_bytes(int fd, int64_t bytes)
{
	char block[65536];
	int64_t at = 0;
	ssize_t n;

	while (at < bytes) {
		n = pread(fd, block, sizeof(block), at);
		if (n > bytes - at)
			n = bytes - at;
		if (n <= 0 || memchr(block, 0, (size_t)n))
			return false;
		at += n;
		if (at == bytes && block[n - 1] != '\n')
			return false;
	}
	return true;
}

static int open_link_output(struct vfm_stage_link *k, struct vfm_err *err)
{
	struct vfm_progress_stage *s = own_stage(k);
	int fd = open(k->out_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

	if (fd < 0)
		return vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", k->out_path);
	vfm_progress_stage_read(s, &k->at);
	if (k->begins_again || !has_bytes(fd, k->at.bytes)) {
		vfm_progress_stage_reset(s);
		vfm_progress_stage_read(s, &k->at);
	}
	if (ftruncate(fd, k->at.bytes) != 0 || lseek(fd, k->at.bytes, SEEK_SET) < 0 || !(k->out = fdopen(fd, "w"))) {
		vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", k->out_path);
		close(fd);
		return VFM_EENV;
	}
	setvbuf(k->out, NULL, _IOFBF, 2 * FLUSH_BYTES);
	k->skip = k->at.inputs;
	atomic_store(&s->started, true);
	return 0;
}

int vfm_stage_link_begin(struct vfm_stage_link *k, FILE **in, struct vfm_stage_counts *counts,
	struct vfm_reasons *reasons, struct vfm_err *err)
{
	*in = NULL;
	k->in_fd = -1;
	k->begun = true;
	if (k->only_counts)
		return 0;
	TRY(open_link_output(k, err));
	*counts = k->at.counts;
	*reasons = k->at.reasons;
	if (!k->in_path)
		return 0;
	/* The stage before may not have made it yet. */
	k->in_fd = open(k->in_path, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
	if (k->in_fd < 0 || !(*in = fopencookie(k, "r", (cookie_io_functions_t){.read = read_published})))
		return vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", k->in_path);
	setvbuf(*in, NULL, _IOFBF, FLUSH_BYTES);
	return 0;
}

/* ---- inputs ---- */

int vfm_stage_link_await(struct vfm_stage_link *k, struct vfm_err *err)
{
	int tries = 0;

	if (!k->in_path)
		return 0;
	atomic_store(&own_stage(k)->read, INT64_MAX);
	while (!atomic_load(&own_stage(k)[-1].finished)) {
		if (atomic_load(&k->progress->stop))
			return vfm_fail(err, VFM_ESIGNAL, "the run stops");
		wait_briefly(&tries);
	}
	return 0;
}

static int check_inputs(const struct vfm_stage_link *k, struct vfm_err *err)
{
	if (k->n_read >= k->skip && k->hash == k->at.hash)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"the first %lld inputs differ from those that this run began with (--update repeats the records that "
		"differ)",
		(long long)k->skip);
}

int64_t vfm_stage_link_bytes(const json_t *rec)
{
	const char *src = vfm_rec_str(rec, "src", NULL);
	struct stat st;

	return src && stat(src, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0;
}

int vfm_stage_link_read(struct vfm_stage_link *k, const json_t *rec, int64_t line, struct vfm_err *err)
{
	struct vfm_buf text = {0};

	if (atomic_load(&k->progress->stop))
		return vfm_fail(err, VFM_ESIGNAL, "the run stops");
	k->n_read++;
	if (k->only_counts) {
		k->n_bytes += rec ? vfm_stage_link_bytes(rec) : 0;
		return 0;
	}
	atomic_store(&own_stage(k)->read, line);
	if (!k->in_path) {
		if (rec)
			vfm_json_text(&text, rec, 0);
		k->hash = (k->hash ^ vfm_fnv64(text.data ? text.data : "", text.len)) * 0x9E3779B97F4A7C15u;
		vfm_buf_release(&text);
	}
	if (k->n_read == k->skip)
		TRY(check_inputs(k, err));
	return k->n_read > k->skip;
}

int vfm_stage_link_end(struct vfm_stage_link *k, struct vfm_err *err)
{
	if (atomic_load(&k->progress->stop))
		return vfm_fail(err, VFM_ESIGNAL, "the run stops");
	return k->n_read < k->skip ? check_inputs(k, err) : 0;
}

/* ---- workers ---- */

void vfm_stage_link_work(struct vfm_stage_link *k)
{
	while (k->takes_tokens && sem_wait(&k->progress->tokens) != 0 && errno == EINTR)
		;
	atomic_fetch_add(&own_stage(k)->busy, 1);
}

void vfm_stage_link_rest(struct vfm_stage_link *k, int n, int64_t bytes, double work_s)
{
	atomic_fetch_add(&own_stage(k)->worked, n);
	atomic_fetch_add(&own_stage(k)->worked_bytes, bytes);
	atomic_fetch_add(&own_stage(k)->worked_us, (int64_t)(work_s * 1e6));
	atomic_fetch_sub(&own_stage(k)->busy, 1);
	if (k->takes_tokens)
		sem_post(&k->progress->tokens);
}

/* ---- outputs ---- */

bool vfm_stage_link_wrote(struct vfm_stage_link *k, const struct vfm_stage_written *w)
{
	k->at.inputs = w->inputs;
	k->at.hash = w->hash;
	k->at.lines += w->lines;
	k->at.bytes += w->bytes;
	k->unpublished += w->bytes;
	return k->unpublished >= FLUSH_BYTES;
}

void vfm_stage_link_publish(
	struct vfm_stage_link *k, const struct vfm_stage_counts *counts, const struct vfm_reasons *reasons)
{
	const struct vfm_progress_stage *next = k->index + 1 < k->progress->n ? own_stage(k) + 1 : NULL;
	int tries = 0;

	k->at.counts = *counts;
	k->at.reasons = *reasons;
	k->unpublished = 0;
	publish_progress(own_stage(k), &k->at);
	while (next && k->at.lines - atomic_load(&next->read) > k->queue && !atomic_load(&k->progress->stop))
		wait_briefly(&tries);
}

int vfm_stage_link_close(struct vfm_stage_link *k, bool done, struct vfm_err *err)
{
	bool failed;

	if (k->only_counts) {
		if (done) {
			atomic_store(&k->progress->total_bytes, k->n_bytes);
			atomic_store(&k->progress->total, k->n_read);
		}
		return 0;
	}
	if (k->in_fd >= 0)
		close(k->in_fd);
	if (!k->out)
		return 0;
	failed = fflush(k->out) != 0 || (done && fdatasync(fileno(k->out)) != 0);
	if (failed)
		vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", k->out_path);
	if (fclose(k->out) != 0 && !failed)
		failed = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", k->out_path) < 0;
	k->out = NULL;
	return failed ? VFM_EENV : 0;
}
