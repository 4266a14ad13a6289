/* The list of training phases: any bytes; in what is accepted, phases have plans and different, valid names. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/plan/phases.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("phases", MFD_CLOEXEC);
	struct vfm_phases l = {0};
	struct vfm_err err = {0};
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	if (vfm_phases_load(&l, path, &err) == 0) {
		for (int i = 0; i < l.n; i++)
			if (vfm_phase_check_name(l.v[i].name, &err) < 0 || !l.v[i].plan[0] ||
				strlen(l.v[i].sha256) != VFM_SHA256_HEX - 1 ||
				vfm_phases_find(&l, l.v[i].name, strlen(l.v[i].name)) != i)
				abort();
	} else if (!err.msg[0]) {
		abort();
	}
	vfm_phases_release(&l);
	close(fd);
	return 0;
}
