/* Runs an emitted kernel: driver FILE, which holds 5 counts of bytes (a, b, c, scratch, dims), the
   number of workers, the argument table, then a, b, c and dims. c is written to standard output. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t kernel(int64_t *arguments, int64_t worker);

static unsigned char *block(FILE *file, int64_t bytes) {
  unsigned char *memory = aligned_alloc(4096, (bytes + 8191) & ~INT64_C(4095));
  if (memory == NULL) exit(2);
  memset(memory, 0xFF, (bytes + 8191) & ~INT64_C(4095));
  if (file != NULL && fread(memory, 1, bytes, file) != (size_t)bytes) exit(3);
  return memory;
}

int main(int count, char **words) {
  int64_t sizes[6], table[27];
  FILE *file = count == 2 ? fopen(words[1], "rb") : NULL;
  if (file == NULL) return 4;
  if (fread(sizes, 8, 6, file) != 6 || fread(table, 8, 27, file) != 27) return 3;
  unsigned char *c;
  table[0] = (int64_t)block(file, sizes[0]);
  table[1] = (int64_t)block(file, sizes[1]);
  table[2] = (int64_t)(c = block(file, sizes[2]));
  table[3] = (int64_t)block(NULL, sizes[3]);
  table[22] = (int64_t)block(file, sizes[4]);
  for (int64_t worker = 0; worker < sizes[5]; worker++)
    if (kernel(table, worker) != 0) return 5;
  return fwrite(c, 1, sizes[2], stdout) == (size_t)sizes[2] ? 0 : 6;
}
