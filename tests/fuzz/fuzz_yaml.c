/* Any text as YAML; what is read is written and read again as JSON. */
#include <stdint.h>
#include <stdlib.h>

#include "io/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vfm_err err = {0};
	json_t *all = vfm_yaml_parse((const char *)data, size, "fuzz", &err);
	char *text;

	if (!all && err.code != VFM_EUSAGE)
		abort();
	if (all) {
		text = json_dumps(all, JSON_ENCODE_ANY);
		if (!text)
			abort();
		free(text);
	}
	json_decref(all);
	return 0;
}
