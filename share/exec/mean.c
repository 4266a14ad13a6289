/* mean.c - child of vfm-exec(7) in C: the mean colour of a clip's frames, as a score or as an embedding of 3 numbers.
 *
 *	cc -O2 -o mean mean.c -ljansson
 *	vfm-curate score --exec ./mean ...
 *
 * It shows the protocol without a library of it: a line in, a line out, arrays in files. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A child without weights gives the sha256 of nothing.  version changes when the results do. */
static const char hello[] =
	"{\"vfm_exec\":1,\"name\":\"mean-colour\",\"version\":\"1\","
	"\"sha256\":\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\","
	"\"capabilities\":[\"score\",\"embed\"],"
	"\"input\":{\"kind\":\"frames\",\"frames\":4,\"width\":64,\"height\":64,\"fit\":\"cover\"}}";

/* Sets mean to red, green and blue of the payload {"path":…,"shape":[F,H,W,3],"dtype":"uint8"}, 0 to 255. */
static const char *compute_mean(const json_t *frames, float mean[3])
{
	const char *path = json_string_value(json_object_get(frames, "path"));
	const char *dtype = json_string_value(json_object_get(frames, "dtype"));
	const json_t *shape = json_object_get(frames, "shape");
	uint64_t sum[3] = {0}, pixels = 1;
	const uint8_t *data;
	struct stat st;
	int fd;

	if (!path || !dtype || strcmp(dtype, "uint8") != 0 || json_array_size(shape) != 4 ||
		json_integer_value(json_array_get(shape, 3)) != 3)
		return "frames: expected [F, H, W, 3] of uint8 in a file";
	for (size_t i = 0; i < 3; i++) {
		json_int_t n = json_integer_value(json_array_get(shape, i));

		if (n < 1 || n > 1 << 20)
			return "frames.shape: expected positive numbers";
		pixels *= (uint64_t)n;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) || (uint64_t)st.st_size != 3 * pixels) {
		if (fd >= 0)
			close(fd);
		return "frames.path: no such file, or not of the size of its shape";
	}
	data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (data == MAP_FAILED)
		return "frames.path: cannot be mapped";
	for (uint64_t i = 0; i < 3 * pixels; i++)
		sum[i % 3] += data[i];
	munmap((void *)data, (size_t)st.st_size);
	for (int c = 0; c < 3; c++)
		mean[c] = (float)((double)sum[c] / (double)pixels);
	return NULL;
}

/* Writes the array of an answer to the file that the request names. */
static bool write_array(const json_t *request, const void *data, size_t size)
{
	const char *path = json_string_value(json_object_get(request, "out"));
	FILE *f = path ? fopen(path, "wb") : NULL;
	bool ok = f && fwrite(data, 1, size, f) == size;

	return (f && fclose(f) == 0) && ok;
}

static json_t *answer_request(const json_t *request)
{
	const char *op = json_string_value(json_object_get(request, "op")), *error;
	json_t *id = json_object_get(request, "id");
	float mean[3];

	error = compute_mean(json_object_get(request, "frames"), mean);
	if (!error && op && !strcmp(op, "score"))
		return json_pack("{s:O, s:{s:f, s:f, s:f}}", "id", id, "score", "red", mean[0], "green", mean[1],
			"blue", mean[2]);
	if (!error && op && !strcmp(op, "embed") && !write_array(request, mean, sizeof(mean)))
		error = "out: cannot be written";
	else if (!error && op && !strcmp(op, "embed"))
		return json_pack("{s:O, s:{s:[i], s:s}}", "id", id, "vector", "shape", 3, "dtype", "float32");
	return json_pack("{s:O, s:s}", "id", id, "error", error ? error : "no such op");
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;

	setvbuf(stdout, NULL, _IOLBF, 0); /* an answer leaves at its end of line */
	puts(hello);
	while (getline(&line, &size, stdin) > 0) {
		json_t *request = json_loads(line, 0, NULL);

		if (!json_object_get(request, "id")) {
			fprintf(stderr, "mean: not a request: %.200s\n", line);
			return 1; /* the tool starts another and sends the requests again */
		}
		json_t *answer = answer_request(request);
		char *text = json_dumps(answer, JSON_COMPACT);

		puts(text);
		free(text);
		json_decref(answer);
		json_decref(request);
	}
	free(line);
	return 0;
}
