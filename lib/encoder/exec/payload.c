/* payload.c - the files of requests and answers: DIR/<slot>.in and DIR/<slot>.out. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "encoder/exec/exec_impl.h"
#include "encoder/exec/payload.h"
#include "io/file.h"

#define PREFIX "vfm-exec-"

enum { DIMS_MAX = 5 };

static const enum vfm_npy_type dtypes[] = {VFM_NPY_U8, VFM_NPY_F16, VFM_NPY_BF16, VFM_NPY_F32};
enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

/* ---- the folder ---- */

/* VFM_EXEC_TMP, else /dev/shm, else TMPDIR, else /tmp. */
static const char *choose_base(void)
{
	const char *base = getenv("VFM_EXEC_TMP"), *tmp = getenv("TMPDIR");

	if (base && *base)
		return base;
	if (access("/dev/shm", W_OK | X_OK) == 0)
		return "/dev/shm";
	return tmp && *tmp ? tmp : "/tmp";
}

int vfm_exec_dir_make(char **dir, int *lock_fd, struct vfm_err *err)
{
	char *base = realpath(choose_base(), NULL); /* absolute: a child may change its folder */
	int rc;

	*dir = NULL;
	*lock_fd = -1;
	if (!base)
		return vfm_fail_errno(err, VFM_EENV, "cannot make a folder for payloads in '%s'", choose_base());
	vfm_temp_dir_sweep(base, PREFIX);
	rc = vfm_temp_dir_make(base, PREFIX, dir, lock_fd, err);
	free(base);
	return rc;
}

/* ---- slots ---- */

void vfm_exec_slot_init(struct vfm_exec_slot *s, struct vfm_exec *x, int index)
{
	*s = (struct vfm_exec_slot){.x = x, .in_fd = -1};
	s->in_path = vfm_strfmt("%s/%d.in", x->dir, index);
	s->out_path = vfm_strfmt("%s/%d.out", x->dir, index);
	pthread_cond_init(&s->answered, NULL);
}

void vfm_exec_slot_release(struct vfm_exec_slot *s)
{
	if (s->in_fd >= 0)
		close(s->in_fd);
	vfm_big_free(s->out, s->out_bytes);
	free(s->in_path);
	free(s->out_path);
	pthread_cond_destroy(&s->answered);
}

struct vfm_exec_slot *vfm_exec_slot(struct vfm_exec *x, int i)
{
	return &x->slots[i];
}

/* Opens a file of the slot.  Removes anything that a child may have put in its place: a link, a FIFO, a folder.
 * Returns a descriptor or a negative code. */
static int open_payload(const char *path, struct vfm_err *err)
{
	struct stat st;
	int fd;

	for (int attempt = 0; attempt < 2; attempt++) {
		fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
		if (fd < 0 && errno != ELOOP && errno != EISDIR && errno != ENXIO && errno != EACCES)
			break;
		if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1)
			return fd;
		if (fd >= 0)
			close(fd);
		TRY(vfm_rm_rf(path, err));
	}
	vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
	return VFM_EENV;
}

int vfm_exec_invalidate_output(const struct vfm_exec_slot *s, struct vfm_err *err)
{
	int fd = open_payload(s->out_path, err), rc = 0;
	off_t size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END), bad = size - 1;

	if (fd < 0)
		return fd;
	/* Arrays have 2 or 4 bytes an element, or are frames of 3 bytes a pixel.  Most pages of the file stay, since
	 * new ones would halve the throughput of large arrays. */
	while (bad > 0 && (bad % 2 == 0 || bad % 3 == 0))
		bad--;
	if (size > 0 && ftruncate(fd, bad) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot truncate '%s'", s->out_path);
	close(fd);
	return rc;
}

/* Opens the input, also again after a child has removed or replaced it. */
static int open_slot_input(struct vfm_exec_slot *s, struct vfm_err *err)
{
	if (s->in_fd >= 0 && vfm_is_same_file(s->in_fd, s->in_path))
		return 0;
	if (s->in_fd >= 0)
		close(s->in_fd);
	s->in_fd = open_payload(s->in_path, err);
	return s->in_fd < 0 ? s->in_fd : 0;
}

/* The array is copied to the file: a child that truncates a mapped file would end this process.  The pages are reused,
 * since new ones cost more than the copy. */
int vfm_exec_input(struct vfm_exec_slot *s, size_t at, const void *data, size_t bytes, struct vfm_err *err)
{
	if (at == 0)
		TRY(open_slot_input(s, err));
	for (size_t done = 0; done < bytes;) {
		ssize_t n = pwrite(s->in_fd, (const char *)data + done, bytes - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return vfm_fail_errno(
				err, VFM_EENV, "cannot write '%s' (VFM_EXEC_TMP names another folder)", s->in_path);
		done += (size_t)n;
	}
	return 0;
}

int vfm_exec_read_input(struct vfm_exec_slot *s, size_t at, void *data, size_t bytes, struct vfm_err *err)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = pread(s->in_fd, (char *)data + done, bytes - done, (off_t)(at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = ENODATA;
		if (n <= 0)
			return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", s->in_path);
		done += (size_t)n;
	}
	return 0;
}

int vfm_exec_describe(struct vfm_exec_slot *s, enum vfm_npy_type dtype, int ndim, const int64_t *shape, json_t **o,
	struct vfm_err *err)
{
	json_t *dims = json_array();
	size_t bytes = vfm_npy_type_size(dtype);

	for (int i = 0; i < ndim; i++) {
		json_array_append_new(dims, json_integer(shape[i]));
		bytes *= (size_t)shape[i];
	}
	*o = json_pack("{s:s,s:o,s:s}", "path", s->in_path, "shape", dims, "dtype", vfm_npy_type_name(dtype));
	if (ftruncate(s->in_fd, (off_t)bytes) == 0)
		return 0;
	json_decref(*o);
	*o = NULL;
	return vfm_fail_errno(err, VFM_EENV, "cannot truncate '%s'", s->in_path);
}

/* ---- arrays of answers ---- */

static int parse_description(struct vfm_npy *n, const json_t *o, const char *key, struct vfm_err *err)
{
	const json_t *shape = json_object_get(o, "shape");
	const char *dtype = json_string_value(json_object_get(o, "dtype"));
	int t = 0;

	if (!json_is_object(o) || !json_is_array(shape) || !dtype)
		return vfm_fail(
			err, VFM_EINPUT, "the model's answer has no \"%s\":{\"shape\":[...],\"dtype\":\"...\"}", key);
	while (t < N_DTYPES && strcmp(dtype, vfm_npy_type_name(dtypes[t])) != 0)
		t++;
	if (t == N_DTYPES)
		return vfm_fail(err, VFM_EINPUT, "%s.dtype: expected uint8, float16, bfloat16 or float32, got '%.40s'",
			key, dtype);
	*n = (struct vfm_npy){.type = dtypes[t], .data_bytes = vfm_npy_type_size(dtypes[t])};
	if (json_array_size(shape) < 1 || json_array_size(shape) > DIMS_MAX)
		return vfm_fail(err, VFM_EINPUT, "%s.shape: expected 1 to %d dimensions", key, DIMS_MAX);
	for (; n->ndim < (int)json_array_size(shape); n->ndim++) {
		const json_t *v = json_array_get(shape, (size_t)n->ndim);
		json_int_t size = json_is_integer(v) ? json_integer_value(v) : 0;

		if (size < 1 || (size_t)size > VFM_EXEC_MAX_ARRAY / n->data_bytes)
			return vfm_fail(err, VFM_EINPUT, "%s.shape: expected positive integers, and at most %zu GiB",
				key, VFM_EXEC_MAX_ARRAY >> 30);
		n->shape[n->ndim] = size;
		n->data_bytes *= (size_t)size;
	}
	return 0;
}

static int read_output(struct vfm_exec_slot *s, size_t bytes, const char *key, struct vfm_err *err)
{
	int fd = open(s->out_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), rc = 0;
	struct stat st;

	if (fd < 0)
		return vfm_fail_errno(err, VFM_EINPUT, "the child wrote no %s: '%s'", key, s->out_path);
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		rc = vfm_fail(err, VFM_EINPUT, "%s: '%s' is no regular file", key, s->out_path);
	else if ((size_t)st.st_size != bytes)
		rc = vfm_fail(err, VFM_EINPUT, "%s: the file has %lld bytes, its shape and dtype say %zu", key,
			(long long)st.st_size, bytes);
	if (rc == 0 && s->out_bytes < bytes) {
		vfm_big_free(s->out, s->out_bytes);
		s->out = vfm_big_alloc(bytes, "an array of a child", err);
		s->out_bytes = s->out ? bytes : 0;
		rc = s->out ? 0 : VFM_EENV;
	}
	/* copied: a child that truncates a mapped file would end this process */
	if (rc == 0)
		rc = vfm_full_pread(fd, s->out, bytes, 0, s->out_path, err);
	close(fd);
	return rc;
}

int vfm_exec_read_array(struct vfm_exec_slot *s, const json_t *answer, const char *key, struct vfm_npy *npy,
	const void **data, struct vfm_err *err)
{
	TRY(parse_description(npy, json_object_get(answer, key), key, err));
	TRY(read_output(s, npy->data_bytes, key, err));
	*data = s->out;
	return 0;
}
