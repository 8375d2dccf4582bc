/* A stand-in for libnvidia-ml.so.1, played from a script, so that the real pynvml can be tested
 * on a machine without a GPU.
 *
 * NVML_STUB_SCENARIO names a text file with one line a board:
 *
 *   <uuid> <mig: 0|1> script <mJ | unsupported | lost>...   one entry a reading, the last for ever
 *   <uuid> <mig: 0|1> watts <milliwatts> <period ms>        a counter that moves once a period
 *
 * Without the variable there is no driver. Everything else a test might ask for is not here, and
 * pynvml reports it as missing, as it would with an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9,
       GPU_IS_LOST = 15 };
enum { BOARDS_MAX = 8, ENTRIES_MAX = 256, LOST = -1, UNSUPPORTED = -2 };

typedef struct {
    char uuid[80];
    int mig;
    long long entries[ENTRIES_MAX];
    int entry_count, next_entry;
    long long milliwatts, period_ms;
} Board;

static Board boards[BOARDS_MAX];
static unsigned int board_count;

static void parse_script(Board *board, char *rest)
{
    for (char *word = strtok(rest, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        if (board->entry_count == ENTRIES_MAX)
            break;
        long long entry = !strcmp(word, "lost")          ? LOST
                          : !strcmp(word, "unsupported") ? UNSUPPORTED
                                                         : atoll(word);
        board->entries[board->entry_count++] = entry;
    }
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    const char *path = getenv("NVML_STUB_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file == NULL)
        return DRIVER_NOT_LOADED;
    char line[8192], mode[16];
    board_count = 0;
    while (board_count < BOARDS_MAX && fgets(line, sizeof line, file)) {
        Board *board = &boards[board_count];
        int used = 0;
        memset(board, 0, sizeof *board);
        if (sscanf(line, "%79s %d %15s %n", board->uuid, &board->mig, mode, &used) < 3)
            continue;
        if (!strcmp(mode, "watts"))
            sscanf(line + used, "%lld %lld", &board->milliwatts, &board->period_ms);
        else
            parse_script(board, line + used);
        board_count++;
    }
    fclose(file);
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Invalid Argument";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    snprintf(version, length, "999.1");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = board_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    if (index >= board_count)
        return INVALID_ARGUMENT;
    *handle = &boards[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    for (unsigned int index = 0; index < board_count; index++)
        if (!strcmp(boards[index].uuid, uuid))
            return nvmlDeviceGetHandleByIndex_v2(index, handle);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "%s", ((Board *)handle)->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length)
{
    (void)handle;
    snprintf(name, length, "Stub Board");
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending)
{
    *current = *pending = (unsigned int)((Board *)handle)->mig;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy_mj)
{
    Board *board = handle;
    if (board->period_ms > 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long now_ms = now.tv_sec * 1000LL + now.tv_nsec / 1000000;
        long long moved_ms = now_ms / board->period_ms * board->period_ms;
        *energy_mj = (unsigned long long)(moved_ms * board->milliwatts / 1000);
        return SUCCESS;
    }
    if (board->entry_count == 0)
        return NOT_SUPPORTED;
    long long entry = board->entries[board->next_entry];
    if (board->next_entry < board->entry_count - 1)
        board->next_entry++;
    if (entry == LOST)
        return GPU_IS_LOST;
    if (entry == UNSUPPORTED)
        return NOT_SUPPORTED;
    *energy_mj = (unsigned long long)entry;
    return SUCCESS;
}
