package org.quailspark;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;

/**
 * A session's parser, before which the front end in Python rewrites AI calls. Handler of a proxy, since versions of Spark
 * differ in what a parser has. Texts of sessions without a model are left alone.
 */
public class AiParser implements InvocationHandler {
  private final ParserInterface parser;
  private final Function frontEnd;
  private final Pattern mention;

  public AiParser(ParserInterface parser, Function frontEnd, Pattern mention) {
    this.parser = parser;
    this.frontEnd = frontEnd;
    this.mention = mention;
  }

  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    if (readsSql(method.getName()) && mention.matcher((String) arguments[0]).find()) {
      arguments = (Object[]) arguments.clone();
      arguments[0] = rewritten((String) arguments[0]);
    }
    try {
      return method.invoke(parser, arguments);
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
  }

  private static boolean readsSql(String method) {
    return method.equals("parseExpression") || method.equals("parseQuery") || method.startsWith("parsePlan");
  }

  private String rewritten(String sql) {
    SQLConf conf = SQLConf$.MODULE$.get();
    if (!conf.contains(PlanRule.MODEL)) {
      return sql;
    }
    boolean quotesAreNames = conf.ansiEnabled() && conf.doubleQuotedIdentifiers();
    Object[] asked = new Object[] {sql, Boolean.valueOf(!quotesAreNames), Boolean.valueOf(!conf.escapedStringLiterals())};
    Object[] answer = ((java.util.List) frontEnd.apply(asked)).toArray();
    if (answer[1] != null) {
      throw new IllegalArgumentException((String) answer[1]);
    }
    return (String) answer[0];
  }
}
