/* Any bytes as the variables of a Slurm step, separated by zeros.  What is accepted is consistent. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/task.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = vfm_calloc(size + 3, 1); /* ends three strings */
	const char *nodes, *distribution;
	struct vfm_step_tasks s;
	struct vfm_err err;

	memcpy(text, data, size);
	nodes = text + strlen(text) + 1;
	distribution = nodes + strlen(nodes) + 1;
	if (vfm_step_tasks_parse(&s, text, nodes, distribution, &err) < 0) {
		if (err.code != VFM_EUSAGE || !strstr(err.msg, "SLURM_"))
			abort();
	} else if (s.tasks < 1 || s.nodes < 1 || s.per_node < 1 || s.nodes * s.per_node != s.tasks) {
		abort();
	}
	free(text);
	return 0;
}
