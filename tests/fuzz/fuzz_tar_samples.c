/* Any bytes as a tar of another program: the records of its samples name members that open, within the file and with
 * the content's length; reading memory and reading the file find the same members; a second tar gives the same, however
 * the first one ended.  An odd first byte corrects the checksums of the headers. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "curate/table/tar_samples.h"
#include "io/input.h"
#include "io/tar.h"
#include "mend_tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void compare_readers(const uint8_t *b, size_t size, int fd)
{
	static struct vfm_tar_member m, n;
	struct vfm_tar memory, file;
	struct vfm_err err;
	int rc;

	vfm_tar_init(&memory, b, size, "fuzz.tar");
	vfm_tar_init_fd(&file, fd, size, "fuzz.tar");
	do {
		rc = vfm_tar_next(&memory, &m, &err);
		if (vfm_tar_next(&file, &n, &err) != rc)
			abort();
		if (rc == 1 &&
			(strcmp(m.name, n.name) != 0 || m.header_offset != n.header_offset ||
				m.data_offset != n.data_offset || m.size != n.size || m.type != n.type))
			abort();
	} while (rc == 1);
}

static void check_record(const json_t *rec, size_t size)
{
	const char *src = json_string_value(json_object_get(rec, "src"));
	struct vfm_input in;
	struct vfm_err err;

	if (!src || !json_object_get(rec, "key") || vfm_input_open(&in, src, &err) < 0 || in.at > size ||
		in.size > size - in.at)
		abort();
	close(in.fd);
}

/* Returns the number of records and errors. */
static int64_t read_samples(const char *path, size_t size, struct vfm_tar_samples_left *left)
{
	struct vfm_tar_samples *s;
	struct vfm_err err = {0};
	int64_t n = 0;
	json_t *rec;
	int rc;

	if (vfm_tar_samples_open(&s, path, left, &err) < 0)
		return -1;
	for (; (rc = vfm_tar_samples_next(s, &rec, &err)) != 0; n++) {
		if (rc == 1)
			check_record(rec, size);
		else if (rc != VFM_EINPUT || !err.msg[0])
			abort();
		json_decref(rec);
	}
	vfm_tar_samples_close(s);
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_tar_samples_left left = {0}, once;
	char path[64];
	uint8_t *b;
	int64_t n;
	int fd;

	if (size < 1)
		return 0;
	size--;
	b = malloc(size + 1);
	memcpy(b, data + 1, size);
	if (data[0] & 1)
		mend_tar(b, size);
	fd = memfd_create("tar", 0);
	if (fd < 0 || write(fd, b, size) != (ssize_t)size)
		abort();
	compare_readers(b, size, fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = read_samples(path, size, &left);
	once = left;
	if (read_samples(path, size, &left) != n || left.members.n != 2 * once.members.n ||
		left.links.n != 2 * once.links.n || left.samples.n != 2 * once.samples.n)
		abort();
	close(fd);
	free(b);
	return 0;
}
