package org.quailspark;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.column.Encoding;
import org.apache.parquet.column.EncodingStats;
import org.apache.parquet.column.statistics.SizeStatistics;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.schema.PrimitiveType;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.execution.datasources.FileIndex;

/** Rows of a Parquet table and facts of its columns, from the footers of some of its files; no Spark job runs. Driver-side. */
public class ParquetFooters {
  private static final int MOST = 2048; // files whose footers are remembered
  private static final Map KNOWN = new LinkedHashMap(16, 0.75f, true);

  /**
   * JSON of the `most` files, at most, that lie evenly among those of a table: `files` of the table, and of those that were
   * read within `seconds` their `read` number, `bytes`, `rows` and by column `texts`, the UTF-8 bytes of its values, and
   * `distinct`, about how many values a row group has, where they repeat; -1 where the footers do not tell.
   */
  public static String sample(FileIndex index, Configuration conf, int most, int seconds) throws Exception {
    String[] files = index.inputFiles();
    int count = Math.min(most, files.length);
    List tasks = new ArrayList();
    for (int i = 0; i < count; i++) {
      String file = files[(int) ((long) i * files.length / count)];
      tasks.add(new Footer(SparkPath.fromUrlString(file).toPath(), conf));
    }
    Map texts = new HashMap(), distinct = new HashMap();
    long read = 0, bytes = 0, rows = 0;
    for (Object found : all(tasks, seconds)) {
      Footer footer = (Footer) found;
      read++;
      bytes += footer.bytes;
      rows += footer.rows;
      for (Object column : footer.texts.keySet()) {
        add(texts, (String) column, ((Long) footer.texts.get(column)).longValue());
      }
      for (Object column : footer.distinct.keySet()) {
        most(distinct, (String) column, ((Long) footer.distinct.get(column)).longValue());
      }
    }
    Map facts = new HashMap();
    facts.put("files", Integer.valueOf(files.length));
    facts.put("read", Long.valueOf(read));
    facts.put("bytes", Long.valueOf(bytes));
    facts.put("rows", Long.valueOf(rows));
    facts.put("texts", texts);
    facts.put("distinct", distinct);
    return new ObjectMapper().writeValueAsString(facts);
  }

  private static List all(List tasks, int seconds) throws Exception {
    List found = new ArrayList();
    if (tasks.isEmpty()) {
      return found;
    }
    ExecutorService threads = Executors.newFixedThreadPool(tasks.size());
    try {
      for (Object future : threads.invokeAll(tasks, seconds, TimeUnit.SECONDS)) {
        if (!((Future) future).isCancelled()) {
          found.add(((Future) future).get());
        }
      }
    } finally {
      threads.shutdownNow();
    }
    return found;
  }

  private static void add(Map sums, String column, long value) {
    long before = sums.containsKey(column) ? ((Long) sums.get(column)).longValue() : 0;
    sums.put(column, Long.valueOf(value < 0 || before < 0 ? -1 : before + value));
  }

  private static void most(Map largest, String column, long value) {
    long before = largest.containsKey(column) ? ((Long) largest.get(column)).longValue() : 0;
    largest.put(column, Long.valueOf(value < 0 || before < 0 ? -1 : Math.max(before, value)));
  }

  /** What one file's footer says; `texts` and `distinct` as in `sample`. */
  private static class Footer implements Callable {
    private final Path path;
    private final Configuration conf;
    long bytes, rows;
    Map texts = new HashMap(), distinct = new HashMap();

    Footer(Path path, Configuration conf) {
      this.path = path;
      this.conf = conf;
    }

    public Object call() throws Exception {
      FileStatus status = path.getFileSystem(conf).getFileStatus(path);
      String key = path + " " + status.getModificationTime() + " " + status.getLen();
      synchronized (KNOWN) {
        if (KNOWN.containsKey(key)) {
          return KNOWN.get(key);
        }
      }
      bytes = status.getLen();
      ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromStatus(status, conf));
      try {
        for (Object block : reader.getFooter().getBlocks()) {
          rows += ((BlockMetaData) block).getRowCount();
          for (Object column : ((BlockMetaData) block).getColumns()) {
            ColumnChunkMetaData chunk = (ColumnChunkMetaData) column;
            String name = chunk.getPath().toDotString();
            boolean text = chunk.getPrimitiveType().getPrimitiveTypeName() == PrimitiveType.PrimitiveTypeName.BINARY;
            long length = text ? textBytes(chunk) : -1;
            if (text) {
              add(texts, name, length);
            }
            most(distinct, name, distinct(chunk, length));
          }
        }
      } finally {
        reader.close();
      }
      synchronized (KNOWN) {
        KNOWN.put(key, this);
        while (KNOWN.size() > MOST) {
          KNOWN.remove(KNOWN.keySet().iterator().next());
        }
      }
      return this;
    }
  }

  /** Recent writers count the bytes; else they are what plain pages hold besides four bytes of length a value. */
  private static long textBytes(ColumnChunkMetaData chunk) {
    SizeStatistics sizes = chunk.getSizeStatistics();
    if (sizes != null && sizes.getUnencodedByteArrayDataBytes().isPresent()) {
      return ((Long) sizes.getUnencodedByteArrayDataBytes().get()).longValue();
    }
    Set encodings = chunk.getEncodings();
    boolean dictionary = encodings.contains(Encoding.PLAIN_DICTIONARY) || encodings.contains(Encoding.RLE_DICTIONARY);
    return dictionary ? -1 : Math.max(0, chunk.getTotalUncompressedSize() - 4 * chunk.getValueCount());
  }

  /** The dictionary's bytes, as if as compressible as the rest, over those of a value. `length`: bytes of all texts. */
  private static long distinct(ColumnChunkMetaData chunk, long length) {
    EncodingStats encodings = chunk.getEncodingStats();
    long start = chunk.getDictionaryPageOffset(), values = chunk.getValueCount();
    if (encodings == null || !encodings.hasDictionaryPages() || encodings.hasNonDictionaryEncodedPages() || start <= 0) {
      return -1;
    }
    double width;
    switch (chunk.getPrimitiveType().getPrimitiveTypeName()) {
      case BINARY:
        width = length < 0 ? -1 : 4 + (double) length / values;
        break;
      case INT32:
      case FLOAT:
        width = 4;
        break;
      case INT64:
      case DOUBLE:
        width = 8;
        break;
      default:
        width = -1;
    }
    double size = (double) (chunk.getFirstDataPageOffset() - start) * chunk.getTotalUncompressedSize() / chunk.getTotalSize();
    long count = Math.max(1, Math.round(size / width));
    return width < 0 || 2 * count > values ? -1 : count;
  }
}
