/* Any bytes as a shard: a sample without fault is a valid record of the index, its key names members, and its numbers
 * are finite.  An odd first byte corrects the checksums of the tar's headers. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/dataset/index_impl.h"
#include "data/dataset/scan.h"
#include "data/record/sample_key.h"
#include "mend_tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_scanned(const struct vfm_scan_sample *m, uint64_t bytes)
{
	struct vfm_index_shard shard = {.name = "000000.tar", .bytes = bytes, .count = 1};
	struct vfm_err err;

	if (m->fault)
		return;
	if (vfm_record_fault(&m->rec, &shard) || vfm_sample_member_check(m->key, &err) < 0 || m->rec.latent_bytes == 0)
		abort();
	for (uint32_t i = 0; i < m->rec.n_texts; i++)
		if (vfm_index_array_fault(&m->texts[i], &m->rec, -1) ||
			(i > 0 && strcmp(m->text_names[i - 1], m->text_names[i]) >= 0))
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_scan s = {0};
	struct vfm_err err;
	char path[64];
	uint8_t *b;
	int fd;

	if (size < 1)
		return 0;
	size--;
	b = malloc(size + 1);
	memcpy(b, data + 1, size);
	if (data[0] & 1)
		mend_tar(b, size);
	fd = memfd_create("shard", 0);
	if (fd < 0 || write(fd, b, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	vfm_scan_tar(&s, path, &err);
	for (size_t i = 0; i < s.n; i++)
		check_scanned(&s.samples[i], s.bytes);
	vfm_scan_release(&s);
	close(fd);
	free(b);
	return 0;
}
