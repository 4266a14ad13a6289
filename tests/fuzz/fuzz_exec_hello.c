/* Any bytes as the hello of a child: what is accepted keeps the ranges that the tools rely on.  The same bytes as a
 * command line. */
#include <stdlib.h>
#include <string.h>

#include "encoder/exec/hello.h"
#include "io/json.h"
#include "io/process.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), **words;
	json_t *o = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
	struct vfm_hello h;
	struct vfm_err err;

	memcpy(text, data, size);
	text[size] = 0;
	words = vfm_exec_words(text, &err);
	if (words && !words[0])
		abort();
	vfm_exec_words_free(words);
	if (vfm_hello_parse(&h, o, &err) == 0) {
		if (!h.ops || h.batch < 1 || strlen(h.sha256) != 64 || !h.name[0] || !h.version[0])
			abort();
		if ((h.ops & (VFM_EXEC_ENCODE | VFM_EXEC_DECODE)) && !vfm_geometry_is_known(&h.geometry))
			abort();
		if ((h.ops & VFM_EXEC_SHOTS) &&
			(h.shots.width < 1 || h.shots.height < 1 || h.shots.margin < 0 ||
				2 * h.shots.margin >= h.shots.frames))
			abort();
		if ((h.ops & VFM_EXEC_TEXT_ENCODE) && h.text_dim < 1)
			abort();
	}
	json_decref(o);
	free(text);
	return 0;
}
