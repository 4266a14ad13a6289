/* A folder of safetensors files with an index (model.safetensors.index.json), as other programs write it: the input is
 * the index, a byte 0, and the one file "a.safetensors".  What is accepted can be read, or gives an error. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/ckpt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void clean(void)
{
	char path[128];

	snprintf(path, sizeof(path), "rm -rf '%s'", dir);
	if (system(path))
		fprintf(stderr, "%s is left behind\n", dir);
}

static void put(const char *name, const uint8_t *data, size_t size)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	if (!f || fwrite(data, 1, size, f) != size || fclose(f))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = memchr(data, 0, size);
	size_t n = end ? (size_t)(end - data) : size;
	struct vfm_err err = {0};
	struct vfm_ckpt *c;

	if (!dir[0]) {
		snprintf(dir, sizeof(dir), "%s/vfm-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
		if (!mkdtemp(dir))
			abort();
		atexit(clean);
	}
	put("model.safetensors.index.json", data, n);
	put("a.safetensors", data + n + (end != NULL), size - n - (end != NULL));
	if (vfm_ckpt_open(&c, dir, &err) < 0) {
		if (!err.msg[0])
			abort();
		return 0;
	}
	for (int i = 0; i < c->n; i++) {
		void *out = vfm_calloc((size_t)c->t[i].numel + 1, vfm_dtype_size(c->t[i].dtype));

		if (vfm_ckpt_read_tensor(c, &c->t[i], NULL, c->t[i].dtype, out, &err) < 0 && !err.msg[0])
			abort();
		free(out);
	}
	vfm_ckpt_close(c);
	return 0;
}
