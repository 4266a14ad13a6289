/* Any bytes as a tar of another program: the records of its samples name members that open, within the file and with
 * the content's length; reading memory and reading the file find the same members.  An odd first byte corrects the
 * checksums of the headers. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/member.h"
#include "base/tar.h"
#include "curate/tar_samples.h"
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

/* The record is one that the readers of records take. */
static void check_line(const json_t *rec)
{
	struct vfm_buf line = {0};
	struct vfm_err err;
	json_t *again;

	vfm_json_text(&line, rec, 0);
	again = vfm_json_parse(line.data, line.len, "line", &err);
	if (!again || !json_equal(again, rec))
		abort();
	json_decref(again);
	vfm_buf_release(&line);
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
	check_line(rec);
}

static void read_samples(const uint8_t *b, size_t size, struct vfm_tar_samples_left *left)
{
	struct vfm_tar_samples *s;
	struct vfm_err err = {0};
	char path[64];
	json_t *rec;
	int fd = memfd_create("tar", 0), rc;

	if (fd < 0 || write(fd, b, size) != (ssize_t)size)
		abort();
	compare_readers(b, size, fd);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (vfm_tar_samples_open(&s, path, left, &err) == 0) {
		while ((rc = vfm_tar_samples_next(s, &rec, &err)) != 0) {
			if (rc == 1)
				check_record(rec, size);
			else if (rc != VFM_EINPUT || !err.msg[0])
				abort();
			json_decref(rec);
		}
		vfm_tar_samples_close(s);
	}
	close(fd);
}

/* Two tars in a row, the halves of the bytes, and then all. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_tar_samples_left left = {0};
	size_t half;
	uint8_t *b;

	if (size < 1)
		return 0;
	size--;
	b = malloc(size + 1);
	memcpy(b, data + 1, size);
	if (data[0] & 1)
		mend_tar(b, size);
	half = size / 1024 * 512;
	read_samples(b, half, &left);
	read_samples(b + half, size - half, &left);
	read_samples(b, size, &left);
	free(b);
	return 0;
}
