/* PMI_process_mapping, as a launcher passes it: any text; what is accepted gives each rank a node that is not
 * negative. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "comm/launch/launch_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int ranks = size ? 1 + data[0] : 1, *node = vfm_malloc((size_t)ranks * sizeof(*node));
	char *text = vfm_calloc(size + 1, 1);

	if (size)
		memcpy(text, data + 1, size - 1);
	memset(node, 0xff, (size_t)ranks * sizeof(*node));
	if (vfm_launch_mapping(text, ranks, node))
		for (int r = 0; r < ranks; r++)
			if (node[r] < 0)
				abort();
	free(text);
	free(node);
	return 0;
}
