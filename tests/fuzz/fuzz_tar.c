/* Any bytes as a tar: members must lie within them, and names are split without a fault.  Checksums would stop
 * the fuzzer at the first header; an odd first byte corrects them in every block. */
#include <stdlib.h>
#include <string.h>

#include "io/tar.h"
#include "mend_tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vfm_tar_member m;
	struct vfm_err err;
	struct vfm_tar t;
	const char *part;
	uint64_t last = 0;
	uint8_t *b;

	if (size < 1)
		return 0;
	size--;
	b = malloc(size + 1);
	memcpy(b, data + 1, size);
	if (data[0] & 1)
		mend_tar(b, size);
	vfm_tar_init(&t, b, size, "fuzz.tar");
	while (vfm_tar_next(&t, &m, &err) == 1) {
		size_t key = vfm_tar_split_name(m.name, &part);

		if (m.header_offset < last || m.data_offset > size || m.size > size - m.data_offset ||
			vfm_tar_end_of(&m) > size || key >= sizeof(m.name) || strlen(m.name) == 0)
			abort();
		last = vfm_tar_end_of(&m);
	}
	free(b);
	return 0;
}
