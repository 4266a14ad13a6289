/* Any bytes as a file of prompts, as text, JSON Lines and an array.  A prompt that is accepted has a caption and values
 * in range, and is read again, from the object that it means, as the same prompt; a refusal has a sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/json.h"
#include "train/sample/prompts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct vfm_prompt defaults = {
	.negative = "", .width = 16, .height = 16, .frames = 1, .fps_num = 8, .fps_den = 1, .steps = 4, .cfg = 3};

static int check_prompt(void *ctx, const json_t *line, const char *caption, struct vfm_err *err)
{
	struct vfm_prompt p = defaults;
	FILE *again = ctx;

	if (!caption || vfm_prompt_apply(&p, line, err) < 0)
		abort();
	if (p.width < 1 || p.height < 1 || p.frames < 1 || p.fps_num < 1 || p.fps_den < 1 || p.steps < 1 || p.seed < 0)
		abort();
	if (again && vfm_jsonl_write(again, line, err) < 0)
		abort();
	return 0;
}

static int count_prompts(void *ctx, const json_t *line, const char *caption, struct vfm_err *err)
{
	(void)caption;
	++*(int *)ctx;
	return check_prompt(NULL, line, "", err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const ends[] = {"txt", "jsonl", "json", "other"};
	char *path = vfm_strfmt("/dev/shm/fuzz-prompts-%d", (int)getpid()), *second = vfm_strfmt("%s.jsonl", path);

	for (int i = 0; i < 4; i++) {
		char *name = vfm_strfmt("%s.%s", path, i == 1 ? "1.jsonl" : ends[i]);
		FILE *f = fopen(name, "w"), *again = fopen(second, "w");
		struct vfm_err err = {0};
		int rc, n = 0;

		if (!f || !again || fwrite(data, 1, size, f) != size || fclose(f) != 0)
			abort();
		rc = vfm_prompts_each(name, NULL, check_prompt, again, &err);
		if (rc < 0 && !err.msg[0])
			abort();
		fclose(again);
		if (vfm_prompts_each(second, NULL, count_prompts, &n, &err) <
			0) /* what was accepted before a refusal */
			abort();
		unlink(name);
		free(name);
	}
	unlink(second);
	free(second);
	free(path);
	return 0;
}
