/* Any bytes as a machine.  One that is accepted gives every case of every op a finite time.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "device/ops/cases.h"
#include "device/sim/estimate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_times(const struct vfm_machine *m, const struct vfm_cases *l)
{
	for (size_t i = 0; i < l->n; i++) {
		struct vfm_sim_cost c;
		struct vfm_err err = {0};

		if (vfm_sim_cost_of(m, &(struct vfm_sim_room){0}, l->v[i]->op, &l->v[i]->args, 0, &c, &err) < 0) {
			if (m->gemm_f8.v[VFM_MID] > 0 || !err.msg[0])
				abort();
			continue;
		}
		for (int e = 0; e < VFM_ESTIMATES; e++)
			if (!isfinite(c.work[e]) || c.work[e] < 0)
				abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vfm_cases cases;
	struct vfm_machine m;
	struct vfm_err err = {0};

	if (!cases.n)
		vfm_cases_init(&cases);
	if (vfm_machine_parse(&m, (const char *)data, size, "fuzz", &err) == 0)
		check_times(&m, &cases);
	else if (err.code != VFM_EUSAGE || !err.msg[0])
		abort();
	return 0;
}
