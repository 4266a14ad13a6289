/* The list of training phases: any bytes; in what is accepted, phases have plans and different, valid names. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/plan/phases.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_phases l = {0};
	struct vfm_err err = {0};

	if (vfm_phases_parse(&l, (const char *)data, size, "dir", &err) == 0) {
		for (int i = 0; i < l.n; i++)
			if (vfm_phase_check_name(l.v[i].name, &err) < 0 || !l.v[i].plan[0] ||
				strlen(l.v[i].sha256) != VFM_SHA256_HEX - 1 ||
				vfm_phases_find(&l, l.v[i].name, strlen(l.v[i].name)) != i)
				abort();
	} else if (!err.msg[0]) {
		abort();
	}
	vfm_phases_release(&l);
	return 0;
}
